"""The pages of `docs/reference/`, made from the code, and the command that writes them."""
