"""Chats: their turns and tools, in Python, in JSON and on the wire."""
