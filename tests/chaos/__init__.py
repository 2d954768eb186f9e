"""Kill, freeze, slow, cut and corrupt: at steps of a hand-over, and in a whole cluster."""
