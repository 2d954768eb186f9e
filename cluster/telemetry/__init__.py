"""Metrics, labels, logs and the request log."""
