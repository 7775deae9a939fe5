"""A federation among organisations: agreement, folder, kits, and the commands of the organiser and the nodes."""
