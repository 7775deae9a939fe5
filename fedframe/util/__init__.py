"""What every layer uses: files, seeds, text, schedules, processes."""
