"""The same clients behind a network: requests and replies, secure sums, the node's side; `flower` is the carrier."""
