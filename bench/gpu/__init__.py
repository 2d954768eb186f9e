"""One GPU against its limits."""
