"""Connections between members of one cluster: proof of its secret, then messages in frames."""
