"""Measurements: what is compared with what, and how it was measured."""
