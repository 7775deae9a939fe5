"""Many runs as one: compare, sweep, the papers' tables."""
