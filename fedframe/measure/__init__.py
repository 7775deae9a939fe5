"""Measures: what a run cost and what its models are like."""
