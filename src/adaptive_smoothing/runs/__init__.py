"""Runs that can be interrupted and continued: shards, the journal, the run folder and progress."""
