"""Benchmarks: the engine against the machine's limits, and against its peers."""
