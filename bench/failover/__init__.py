"""Takes a decode replica away from running streams, and measures their pauses."""
