"""The flush delay of tokens, and the pieces in which an answer reaches its client. Pure.

The mode of the endpoint decides. With `chunks`, the delay is `FlushConfig` in
`cluster/config/endpoints.py`; the other modes have theirs here.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.config.endpoints import EndpointConfig

# Where the text is kept to the end, the replica sends few large pieces, as often as progress.
_SELDOM_S = 0.25
_MANY_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class StreamDelivery:
    """A replica delays a token for `flush_delay_s` at most, to send up to `flush_tokens` together.

    `at_end`: the client gets the text of each choice in one piece, when all choices are done.
    `progress`: the client gets Progress events meanwhile.
    """

    flush_delay_s: float = 0.0
    flush_tokens: int = 1
    at_end: bool = False
    progress: bool = False


def delivery_of(endpoint: EndpointConfig, progress: bool = False) -> StreamDelivery:
    """The delivery of a request to that endpoint; `progress`: it asked for Progress events."""
    match endpoint.stream:
        case "tokens":
            return StreamDelivery(0.0, 1, progress=progress)
        case "chunks":
            flush = endpoint.flush
            return StreamDelivery(flush.ms / 1000, flush.tokens, progress=progress)
        case "progress":
            return StreamDelivery(_SELDOM_S, _MANY_TOKENS, at_end=True, progress=True)
        case "whole":
            return StreamDelivery(_SELDOM_S, _MANY_TOKENS, at_end=True, progress=progress)
