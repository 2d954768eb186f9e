"""Deadlines, worker threads and bounded maps."""
