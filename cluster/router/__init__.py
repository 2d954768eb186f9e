"""One request from its arrival to its summary, and the router process."""
