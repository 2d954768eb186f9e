"""A model step on one device: paged KV, attention, batches, sampling, text."""
