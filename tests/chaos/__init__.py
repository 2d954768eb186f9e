"""Kill, freeze, cut and corrupt, at every step of a hand-over."""
