"""Clean and robust accuracy, image by image: evaluation under attacks, alarms, trade-offs and comparisons."""
