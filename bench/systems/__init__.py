"""Starts each system and sends it requests; measures the engine alone."""
