"""Jobs: from settings to everything that a run needs."""
