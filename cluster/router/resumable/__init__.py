"""Resumable streams in the router."""
