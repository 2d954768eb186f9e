"""The memory of a device: what weights, recordings, links and KV blocks take of it."""
