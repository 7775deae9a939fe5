"""Measures: formulas for what models are like and what a run costs, and observers that take them in rounds."""
