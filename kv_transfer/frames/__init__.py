"""Cutting KV into frames; staging, copying and checking them."""
