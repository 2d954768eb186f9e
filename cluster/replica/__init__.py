"""One replica process: an engine, both loops and their servers."""
