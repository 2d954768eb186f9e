"""Measurements of the engine alone, and of parts of it."""
