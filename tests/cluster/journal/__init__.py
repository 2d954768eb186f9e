"""The journal of resumable streams, over a Redis of its own."""
