"""Moving KV blocks between two processes: transports, links, and frames."""
