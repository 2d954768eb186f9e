"""The decode pool: continues from handed-over KV in a continuously batched loop."""
