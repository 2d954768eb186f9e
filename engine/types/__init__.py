"""A sequence, and what a request asks of it."""
