"""Comments in an answer of server-sent events, for what is no part of the answer."""

from __future__ import annotations

import time

from cluster.api import Event, Heartbeat, Progress, Resumability, Tokens
from cluster.gateway.openai_chunks import progress_json
from cluster.gateway.sse import HEARTBEAT, comment

# As of the router, which does not know what its front ends write.
HEARTBEAT_S = 10.0


def comment_of(event: Event, first_choice: int = 0) -> bytes:
    """The comment of an event that is no part of the answer; empty for other events.

    `first_choice` is the number of the first choice of its prompt.
    """
    match event:
        case Heartbeat():
            return HEARTBEAT
        case Progress():
            return comment("progress", progress_json(event, first_choice + event.choice))
        case Resumability(suspended):
            return comment("resumability", {"suspended": suspended})
    return b""


class SilenceFiller:
    """Has a `heartbeat` written where the text of tokens waits in a parser for long."""

    def __init__(self, heartbeat: bytes = HEARTBEAT) -> None:
        self._heartbeat = heartbeat
        self._written_s = time.monotonic()

    def filled(self, event: Event, written: bytes) -> bytes:
        """What to write for an event in place of nothing."""
        now = time.monotonic()
        if isinstance(event, Tokens) and now - self._written_s >= HEARTBEAT_S:
            written = written or self._heartbeat
        if written:
            self._written_s = now
        return written
