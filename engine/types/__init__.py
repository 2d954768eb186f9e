"""A sequence, and the parameters of its request."""
