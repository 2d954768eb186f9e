"""The cursor of a resumable stream: what a client has. Over HTTP it is the id of an event.

STREAM:12.7      12 tokens of choice 0, and 7 of choice 1
STREAM:12.7:end  and the chunk with the usage
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from cluster.api import Tokens
from cluster.api.limits import MAX_CHOICES
from cluster.api.validation import check_have, check_stream_id
from engine.errors import InvalidRequest, shown

LAST_EVENT_ID = "last-event-id"
_COUNTS = re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})*")
# Bound: characters of the counts of all choices.
_MOST_CHARACTERS = 11 * MAX_CHOICES
_END = ":end"


@dataclass(slots=True)
class StreamCursor:
    """The tokens of each choice that a client has, and whether it has the end, too."""

    stream_id: str
    have: list[int]
    ended: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """The cursor in the id of an event; raises InvalidRequest."""
        stream_id, _, counts = text.removesuffix(_END).partition(":")
        try:
            have = read_counts(counts)
            return cls(check_stream_id(stream_id), have, text.endswith(_END))
        except InvalidRequest:
            message = f"Last-Event-ID is not the id of an event of a stream: {shown(text)}"
            raise InvalidRequest(message, field="Last-Event-ID") from None

    def add(self, event: Tokens) -> None:
        """Count the tokens of an event."""
        self.have[event.choice] += len(event.ids)

    def line(self) -> bytes:
        """The line of an event that carries the cursor."""
        have = self.have
        counts = have[0] if len(have) == 1 else ".".join(map(str, have))
        return f"id: {self.stream_id}:{counts}{_END if self.ended else ''}\n".encode()


def read_counts(text: str) -> list[int]:
    """The counts in `12.7`; raises InvalidRequest."""
    if len(text) > _MOST_CHARACTERS or not _COUNTS.fullmatch(text):
        message = f"have must be numbers of tokens with dots between, not {shown(text)}"
        raise InvalidRequest(message, field="have")
    return list(check_have([int(count) for count in text.split(".")]))
