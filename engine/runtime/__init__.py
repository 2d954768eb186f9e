"""The engine and its thread."""
