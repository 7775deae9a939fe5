"""The protocol as a command: scenes in which every method has the same schedule, budget, controls and statistics."""
