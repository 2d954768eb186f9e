"""Loading a model, and its forward in every variant."""
