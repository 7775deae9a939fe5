"""Classifiers in closed form, from sums over all clients: pure functions, in float64, without a loop over clients."""
