"""The urgency of prompts that share a device with streams. Pure.

A router predicts with these values, and replicas compute by them.
"""

from __future__ import annotations

from enum import IntEnum


class Urgency(IntEnum):
    """The urgency of a prompt, or of a pass: the highest of the prompts in it.

    A router plans a prompt with NONE where no streams share its device. Such a prompt goes to a
    replica as PROMPTS, because streams may have begun there by then.
    """

    NONE = 0  # no prompt waits for the pass, or no stream shares the prompt's device
    PROMPTS = 1  # the streams keep the inter-token latency that they have
    PRESSED = 2  # the streams wait longer: other prompts wait, or this prompt would else be late
    URGENT = 3  # the streams wait as long as their budgets allow: prompts would be late even so


def raised(urgency: Urgency, other: Urgency, *, behind: bool = False) -> Urgency:
    """The urgency of a prompt that waits on a replica together with a prompt of urgency `other`.

    A prompt ahead of the other gets the other's urgency, because the other waits for it. A prompt
    `behind` the other gets PRESSED at most. A prompt without urgency keeps NONE.
    """
    if urgency is Urgency.NONE:
        return urgency
    return max(urgency, min(other, Urgency.PRESSED) if behind else other)
