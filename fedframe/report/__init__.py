"""What users look at: the HTML page, figures, and the table of a partition; imported when needed."""
