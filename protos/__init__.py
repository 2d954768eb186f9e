"""The wire: protocol definitions and the code generated from them."""
