"""FP8 (E4M3) weights: their scales, their place in a module, and products with them."""
