"""A run and its folder: start, resume, predict, personalise; progress and loggers."""
