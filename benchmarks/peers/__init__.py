"""Other frameworks on the jobs of `benchmarks.jobs`: `python -m benchmarks.peers`."""
