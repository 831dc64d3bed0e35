"""The engine of attacks: it runs jobs of many images in batches, in the fastest arithmetic that is accurate enough."""
