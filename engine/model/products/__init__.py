"""Matrix products of few rows on a CUDA device: tiles, launches, and which kernel is faster."""
