"""CPU cores that several engines share, and huge pages."""
