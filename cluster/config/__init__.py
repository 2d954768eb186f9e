"""One YAML document becomes frozen sections, one per package."""
