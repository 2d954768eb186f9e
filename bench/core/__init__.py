"""The machine, the model, statistics, tables and prompts."""
