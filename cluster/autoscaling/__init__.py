"""A pure controller on load signals, and the task that applies its decisions."""
