"""Parsers of answers: reasoning and calls of tools, piece by piece as the text comes.

What a parser has given after some text depends on that text alone, not on its pieces. So another
router that reads the same text goes on alike.
"""
