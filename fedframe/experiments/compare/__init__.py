"""Methods side by side: the same clients, splits and initial weights for all, over several seeds, with statistics."""
