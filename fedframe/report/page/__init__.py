"""The page of a run or of a comparison: sections gathered from run folders, put into one HTML file."""
