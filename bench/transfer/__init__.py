"""Moving KV against the floor of a plain copy."""
