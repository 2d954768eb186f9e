"""Anthropic's Messages API over a Generator."""
