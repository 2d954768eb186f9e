"""The JSON messages of a WebSocket: reads a client's messages, writes a generation's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.api import (
    Event,
    Generator,
    Heartbeat,
    Progress,
    Resumability,
    ResumeRequest,
    Scored,
    Started,
    Summary,
    Tokens,
)
from cluster.api.error_mapping import http_error
from cluster.api.requests import TokenOffsets
from cluster.api.validation import check_have, check_request_id, check_stream_id
from cluster.gateway.answers.stream_note import StreamNote
from cluster.gateway.json_body import parse_json
from cluster.gateway.openai_chunks import Json, UsageCount, parts_json, progress_json
from cluster.gateway.openai_requests import ChatRequest, CompletionRequest, OpenAICall
from engine.errors import Internal, InvalidRequest, TandemError, shown
from protos.status import retry_after_ms

_KINDS: dict[str, type[ChatRequest] | type[CompletionRequest]] = {
    "chat": ChatRequest,
    "completion": CompletionRequest,
}
CANCEL, RESUME = "cancel", "resume"
_TYPES = (*_KINDS, RESUME, CANCEL)


def read_object(text: str | None) -> dict[str, Any]:
    """The JSON object in a message; InvalidRequest. `text` is None for a message of bytes."""
    if text is None:
        raise InvalidRequest("messages must be text, not bytes")
    document = parse_json(text, "the message")
    if not isinstance(document, dict):
        raise InvalidRequest(f"a message must be a JSON object, not {shown(document)}")
    return document


def take_id(document: dict[str, Any]) -> str:
    """Remove and return the id that the client gave; InvalidRequest."""
    name = document.pop("id", None)
    if not isinstance(name, str) or not name:
        raise InvalidRequest(
            f"id must be a string of the client's own, not {shown(name)}", field="id"
        )
    try:
        return check_request_id(name)
    except InvalidRequest as error:
        raise InvalidRequest(error.message.replace("request_id", "id", 1), field="id") from None


def take_type(document: dict[str, Any]) -> str:
    """Remove and return the type of the message; InvalidRequest."""
    kind = document.pop("type", None)
    if kind not in _TYPES:
        raise InvalidRequest(
            f"type must be one of {', '.join(_TYPES)}, not {shown(kind)}", field="type"
        )
    return str(kind)


def take_stream_id(document: dict[str, Any]) -> str | None:
    """The id of the stream in a message to cancel, or None; InvalidRequest."""
    stream_id = document.pop("stream_id", None)
    _check_empty(document)
    return None if stream_id is None else _stream_id(stream_id)


def read_resume(document: dict[str, Any], tenant: str) -> ResumeRequest:
    """The request of a message to resume; raises InvalidRequest."""
    stream_id, have = document.pop("stream_id", None), document.pop("have", [])
    _check_empty(document)
    if not isinstance(have, list):
        raise InvalidRequest(f"have must be a list, not {shown(have)}", field="have")
    return ResumeRequest(_stream_id(stream_id), check_have(have), tenant)


def _stream_id(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"stream_id must be a string, not {shown(value)}", field="stream_id")
    return check_stream_id(value)


def _check_empty(document: dict[str, Any]) -> None:
    if document:
        name = next(iter(document))
        raise InvalidRequest(f"unknown field {shown(name)}", field=name[:64])


def read_call(kind: str, document: dict[str, Any], request_id: str, tenant: str) -> OpenAICall:
    """The call of a message of that type, always streamed; raises InvalidRequest."""
    if document.setdefault("stream", True) is not True:
        raise InvalidRequest("stream must be true here, or absent", field="stream")
    return _KINDS[kind].read(document).call(request_id, tenant)


def cancelled(name: str, stream_id: str) -> Json:
    """The answer to a message that cancelled a stream."""
    return {"id": name, "type": "cancelled", "stream_id": stream_id}


def failed(name: str | None, error: TandemError) -> Json:
    """The message of an error, with the status and body that HTTP would have."""
    status, body, _ = http_error(error)
    wait_ms = retry_after_ms(error)
    message = {"id": name, "type": "error", "status": status} | body
    return message if wait_ms is None else message | {"retry_after_ms": wait_ms}


class Messages:
    """The messages of one generation that `name`, the client's id, stands for.

    `offsets` has the offsets of the tokens of each choice, where it goes on.
    """

    def __init__(
        self,
        name: str,
        note: StreamNote,
        generator: Generator,
        prompts: int,
        offsets: Sequence[TokenOffsets] = (),
    ) -> None:
        self._name = name
        self._note = note
        self._generator = generator
        self._prompts = prompts
        new = note.n * prompts - len(offsets) if note.logprobs else 0
        self._offsets = [*offsets, *(generator.offsets() for _ in range(new))]
        self._usage = UsageCount()

    def of(self, prompt_index: int, event: Event) -> Json | None:
        """The message for an event of the prompt at `prompt_index`; None for none."""
        match event:
            case Tokens():
                return self._tokens(prompt_index, event)
            case Progress():
                number = prompt_index * self._note.n + event.choice
                return self._message("progress") | progress_json(event, number)
            case Started(request_id, model, prompt_tokens, seed, stream_id):
                resumable = {"stream_id": stream_id} if stream_id else {}
                return self._message("started") | {
                    "prompt": prompt_index,
                    "request_id": request_id,
                    "model": model,
                    "prompt_tokens": prompt_tokens,
                    "seed": seed,
                    **resumable,
                }
            case Resumability(suspended):
                return self._message("resumability") | {"suspended": suspended}
            case Summary():
                self._usage.add(event, prompt_index)
                return None
            case Heartbeat() | Scored():
                return None  # the socket's own pings are sent in any case

    def end(self) -> Json:
        """The last message; Internal where a summary is missing."""
        self._usage.check(self._prompts)
        end = self._message("end") | {"usage": self._usage.json()}
        return end | {"timing": self._usage.timing(self._note.n)} if self._note.timing else end

    def _tokens(self, prompt_index: int, event: Tokens) -> Json:
        if event.choice >= self._note.n:
            raise Internal(f"tokens of choice {event.choice} of {self._note.n}")
        number = prompt_index * self._note.n + event.choice
        message = self._message("tokens") | {
            "choice": number,
            "index": event.index,
            "ids": event.ids,
            "text": event.text,
            "finish_reason": event.finish_reason,
            **parts_json(event),
        }
        if self._note.logprobs:
            message["logprobs"] = self._note.layout.logprobs(
                event.tokens, self._generator.token_text, self._offsets[number]
            )
        return message

    def _message(self, kind: str) -> Json:
        return {"id": self._name, "type": kind}
