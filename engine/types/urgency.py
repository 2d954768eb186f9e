"""How much of shared cores prompts are to have beside the steps of streams. Pure."""

from __future__ import annotations

from enum import IntEnum


class Urgency(IntEnum):
    """Of a prompt, or of a step: the most counts of those that are computed together.

    How far apart steps are then is in decode_pool/shared_cores.py.
    """

    NONE = 0  # nobody's first token waits for it
    PROMPTS = 1  # in no urgency: streams keep the gap that they have
    PRESSED = 2  # others wait, or it would else be late: streams wait longer than they did
    URGENT = 3  # or would be late even so, or make others late: streams have their budget alone
