"""The form of a streamed answer. A resumable request keeps it as its note, in JSON."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Self

from cluster.api import ChatPrompt, GenerateRequest
from cluster.api.limits import MAX_CHOICES
from cluster.api.validation import check_request_id
from cluster.gateway.openai_chunks import CHAT, COMPLETION, Form
from cluster.gateway.openai_requests import OpenAICall
from engine.errors import Internal, InvalidRequest

# The form in the notes of responses: `cluster/gateway/responses/note.py`.
RESPONSE = "response"
FORMS: dict[str, Form] = {"chat": CHAT, "completion": COMPLETION}
_LATER = {
    "continuous_usage": False,
    "timing": False,
}  # fields that notes of earlier versions do not have
_KINDS = {
    "form": str,
    "request_id": str,
    "created": int,
    "n": int,
    "include_usage": bool,
    "token_ids": bool,
    "logprobs": bool,
    "continuous_usage": bool,
    "timing": bool,
}


@dataclass(frozen=True, slots=True)
class StreamNote:
    """How an answer is written. `form` is a key of FORMS; `created` is in seconds since the epoch.

    `n` choices answer each prompt. With `continuous_usage` each chunk tells the tokens so far. With
    `timing` the end has the stages of each choice.
    """

    form: str
    request_id: str
    created: int
    n: int
    include_usage: bool
    token_ids: bool
    logprobs: bool
    continuous_usage: bool = False
    timing: bool = False

    @classmethod
    def of(cls, form: str, call: OpenAICall) -> Self:
        """The form of the answer to a call that came now."""
        return cls(
            form=form,
            request_id=call.request_id,
            created=int(time.time()),
            n=call.n,
            include_usage=call.include_usage,
            token_ids=call.token_ids,
            logprobs=call.requests[0].sampling.logprobs is not None,
            continuous_usage=call.continuous_usage,
            timing=call.timing,
        )

    @classmethod
    def of_grpc(cls, request: GenerateRequest) -> Self:
        """How other front ends write the rest of a request over gRPC: with all that gRPC has."""
        return cls(
            form="chat" if isinstance(request.prompt, ChatPrompt) else "completion",
            request_id=request.request_id,
            created=int(time.time()),
            n=request.n,
            include_usage=True,
            token_ids=True,
            logprobs=request.sampling.logprobs is not None,
        )

    @classmethod
    def read(cls, text: str, request_id: str = "") -> Self:
        """The note in `text`; InvalidRequest where it is missing or of another form of stream.

        `request_id` is for a note without one, where the router drew it.

        Raises Internal for a text that no front end wrote.
        """
        if not text:
            raise InvalidRequest(
                "the stream was begun over gRPC, by an earlier version: Resume gives its rest",
                field="stream_id",
            )
        fault = Internal("the note of the stream cannot be read")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise fault from None
        if not isinstance(found, dict):
            raise fault
        if found.get("form") == RESPONSE:
            raise InvalidRequest(
                "the stream is of a response: GET /v1/responses/{id} gives its rest",
                field="stream_id",
            )
        found = {**_LATER, **found}
        if found.keys() != _KINDS.keys():
            raise fault
        if any(type(found[name]) is not kind for name, kind in _KINDS.items()):
            raise fault
        note = cls(**found)
        if note.form not in FORMS or not 1 <= note.n <= MAX_CHOICES or note.created < 0:
            raise fault
        try:
            check_request_id(note.request_id)
        except InvalidRequest:
            raise fault from None
        return replace(note, request_id=note.request_id or request_id)

    def text(self) -> str:
        """The note as JSON."""
        fields = {name: getattr(self, name) for name in _KINDS}
        fields = {name: one for name, one in fields.items() if _LATER.get(name) is not one}
        return json.dumps(fields, separators=(",", ":"))

    @property
    def layout(self) -> Form:
        """The form of a choice."""
        return FORMS[self.form]

    @property
    def has_text_offsets(self) -> bool:
        """Whether chunks say where in the text each token begins."""
        return self.form == "completion" and self.logprobs
