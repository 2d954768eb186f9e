"""A Ray of this machine alone: where its files are, how it is tuned, and its GCS kept alive."""
