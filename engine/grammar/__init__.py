"""Structured answers: grammars compiled by llguidance, and the masks of their next tokens."""
