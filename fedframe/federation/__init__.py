"""A federation among organisations: its folder and kits, the node's work, and the letters between them."""
