"""What a response repeats of its request, and its name. A background request keeps it as note."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

from cluster.api.validation import check_request_id, check_stream_id
from cluster.gateway.answers.stream_note import RESPONSE
from cluster.gateway.openai_chunks import Json
from engine.errors import Internal, InvalidRequest, NotFound

PREFIX = "resp_"
_KINDS = {"form": str, "request_id": str, "created": int, "echo": dict}
_NOT_FOUND = "there is no such response in the background, or it ended too long ago"


def no_response() -> NotFound:
    """The error for an id that is of no response."""
    return NotFound(_NOT_FOUND, field="response_id")


def stream_id_of(response_id: str) -> str:
    """The id of the stream of a response; raises NotFound."""
    stream_id = response_id.removeprefix(PREFIX)
    if stream_id == response_id:
        raise no_response()
    try:
        return check_stream_id(stream_id)
    except InvalidRequest:
        raise no_response() from None


@dataclass(frozen=True, slots=True)
class ResponseNote:
    """A response of a request that came at `created`, in seconds since the epoch.

    `echo` has the fields that come back. `stream_id` is empty where it is not in the background.
    With `timing` the response has the stages of its answer.
    """

    request_id: str
    created: int
    echo: Json
    stream_id: str = ""
    logprobs: bool = False
    timing: bool = False

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return PREFIX + (self.stream_id or self.request_id)

    @classmethod
    def read(cls, text: str, stream_id: str) -> Self:
        """The note of a stream; NotFound where it is of no response.

        Raises Internal for a text that no front end wrote.
        """
        fault = Internal("the note of the response cannot be read")
        if not text:
            raise no_response()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise fault from None
        if not isinstance(found, dict):
            raise fault
        if found.get("form") != RESPONSE:
            raise no_response()
        if {name: type(one) for name, one in found.items()} != _KINDS or found["created"] < 0:
            raise fault
        try:
            name = check_request_id(found["request_id"])
        except InvalidRequest:
            raise fault from None
        return cls(name, found["created"], found["echo"], stream_id)

    def text(self) -> str:
        """The note as JSON."""
        known = {"request_id": self.request_id, "created": self.created, "echo": self.echo}
        return json.dumps({"form": RESPONSE} | known, separators=(",", ":"))
