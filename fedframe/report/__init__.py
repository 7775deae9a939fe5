"""What users look at: terminal tables, progress, pictures. Nothing here is imported before it is needed."""
