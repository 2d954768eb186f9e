"""Layers with experts: routing of tokens, grouped products, and weights as they are stored."""
