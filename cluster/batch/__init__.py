"""Offline batches: files of requests in OpenAI's batch form."""
