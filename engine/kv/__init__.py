"""KV blocks: the bookkeeping, the tensors, their layout and prefix digests."""
