"""How the tokens of a request reach its client, by the mode of its endpoint. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.config.endpoints import EndpointConfig

# Where the text is kept to the end it comes from the replica in few pieces; how far it is can be
# told as often.
_SELDOM_S = 0.25
_MANY_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class StreamDelivery:
    """A replica holds a token for `hold_s`, and at most `hold_tokens`, to send them together.

    `at_end`: the client is given each choice's text in one piece, when all are done. `progress`:
    it is told meanwhile how far its request is.
    """

    hold_s: float = 0.04
    hold_tokens: int = 24
    at_end: bool = False
    progress: bool = False


def delivery_of(endpoint: EndpointConfig, progress: bool = False) -> StreamDelivery:
    """What a request of that endpoint gets; `progress` says whether it asked to be told."""
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
