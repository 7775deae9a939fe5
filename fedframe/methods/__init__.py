"""Federated methods: parts, one idea per file, and recipes that put them together."""
