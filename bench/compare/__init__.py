"""Systems beside each other."""
