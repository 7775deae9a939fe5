"""The core: what crosses the wire, the loop over batches, the loop over rounds, and what is kept on disk."""
