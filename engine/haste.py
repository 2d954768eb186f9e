"""How long streams are to wait for their tokens while prompts are computed beside them. Pure."""

from __future__ import annotations

from enum import IntEnum


class Haste(IntEnum):
    """Of a prompt, or of a step: the most counts of those that are computed together."""

    NONE = 0  # nobody's first token waits for it
    PROMPTS = 1  # streams keep the gap that they have
    PRESSED = 2  # prompts wait, or would be late: streams keep well within their budget
    FLOODED = 3  # more of them come than can be computed: streams get their tokens only as due
