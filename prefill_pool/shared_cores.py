"""Which parts of the KV leave later where engines of one host share its cores. Pure.

A deployment with separate devices never enters this module. Sending a part of the KV takes time of
the cores on which prompts are computed, so an urgent pass sends fewer parts.
"""

from __future__ import annotations

from engine.types.sequence import Span
from engine.types.urgency import Urgency


class SharedCores:
    """Says of a pass which of its parts are announced before the pass is answered."""

    def announces_layers(self, spans: list[Span]) -> bool:
        """Whether finished layers are announced; not while a pressed prompt is in the pass."""
        return not any(span.sequence.pressed for span in spans)

    def announces_stored(self, spans: list[Span]) -> bool:
        """Whether whole KV is announced before the first token is sampled.

        The KV of an urgent prompt leaves while the next pass is computed.
        """
        return not any(span.sequence.urgency is Urgency.URGENT for span in spans)
