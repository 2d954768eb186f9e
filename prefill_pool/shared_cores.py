"""Delays parts of the KV where engines of one host share its cores. Pure.

An engine that has a device of its own never enters this module. To send a part of the KV takes time
of the cores on which prompts are computed. So an urgent pass sends fewer parts.
"""

from __future__ import annotations

from engine.types.sequence import Span
from engine.types.urgency import Urgency


def announces_layers(spans: list[Span]) -> bool:
    """Whether finished layers of a pass are announced; not while it has a pressed prompt."""
    return not any(span.sequence.pressed for span in spans)


def announces_stored(spans: list[Span]) -> bool:
    """Whether a pass announces its whole KV before the first tokens are sampled.

    The KV of an urgent prompt leaves while the next pass is computed.
    """
    return not any(span.sequence.urgency is Urgency.URGENT for span in spans)
