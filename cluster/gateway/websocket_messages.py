"""The JSON messages of a WebSocket: reads those of a client, writes those of a generation."""

from __future__ import annotations

from typing import Any

from cluster.api import (
    Event,
    Generator,
    Heartbeat,
    Progress,
    Resumability,
    Scored,
    Started,
    Summary,
    Tokens,
)
from cluster.api.error_mapping import http_error
from cluster.api.validation import check_request_id
from cluster.gateway.json_body import parse_json
from cluster.gateway.openai_chunks import CHAT, COMPLETION, Form, Json, progress_json
from cluster.gateway.openai_requests import ChatRequest, CompletionRequest, OpenAICall
from engine.errors import Internal, InvalidRequest, TandemError, shown
from protos.status import retry_after_ms

_KINDS: dict[str, tuple[Form, type[ChatRequest] | type[CompletionRequest]]] = {
    "chat": (CHAT, ChatRequest),
    "completion": (COMPLETION, CompletionRequest),
}
CANCEL = "cancel"
_TYPES = (*_KINDS, CANCEL)


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
    if kind == CANCEL and document:
        name = next(iter(document))
        raise InvalidRequest(f"unknown field {shown(name)}", field=name[:64])
    return str(kind)


def read_call(kind: str, document: dict[str, Any], request_id: str, tenant: str) -> OpenAICall:
    """The call of a message of that type, always streamed; raises InvalidRequest."""
    if document.setdefault("stream", True) is not True:
        raise InvalidRequest("stream must be true here, or absent", field="stream")
    return _KINDS[kind][1].read(document).call(request_id, tenant)


def failed(name: str | None, error: TandemError) -> Json:
    """The message of an error, with the status and body that HTTP would have."""
    status, body, _ = http_error(error)
    wait_ms = retry_after_ms(error)
    message = {"id": name, "type": "error", "status": status} | body
    return message if wait_ms is None else message | {"retry_after_ms": wait_ms}


class Messages:
    """The messages of one generation that `name`, the client's id, stands for."""

    def __init__(self, name: str, kind: str, call: OpenAICall, generator: Generator) -> None:
        self._name = name
        self._form = _KINDS[kind][0]
        self._call = call
        self._generator = generator
        self._offsets = [0] * (call.n * len(call.requests))
        self._summaries: list[Summary] = []

    def of(self, prompt_index: int, event: Event) -> Json | None:
        """The message for an event of the prompt at `prompt_index`; None for none."""
        match event:
            case Tokens():
                return self._tokens(prompt_index, event)
            case Progress():
                number = prompt_index * self._call.n + event.choice
                return self._message("progress") | progress_json(event, number)
            case Started(request_id, model, prompt_tokens, seed):
                return self._message("started") | {
                    "prompt": prompt_index,
                    "request_id": request_id,
                    "model": model,
                    "prompt_tokens": prompt_tokens,
                    "seed": seed,
                }
            case Resumability(suspended):
                return self._message("resumability") | {"suspended": suspended}
            case Summary():
                self._summaries.append(event)
                return None
            case Heartbeat() | Scored():
                return None  # the socket's own pings are sent in any case

    def end(self) -> Json:
        """The last message; Internal where a summary is missing."""
        if len(self._summaries) != len(self._call.requests):
            raise Internal("the reply ended early")
        prompt_tokens = sum(one.prompt_tokens for one in self._summaries)
        completion_tokens = sum(one.completion_tokens for one in self._summaries)
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(one.cached_tokens for one in self._summaries)
            },
        }
        return self._message("end") | {"usage": usage}

    def _tokens(self, prompt_index: int, event: Tokens) -> Json:
        number = prompt_index * self._call.n + event.choice
        message = self._message("tokens") | {
            "choice": number,
            "index": event.index,
            "ids": event.ids,
            "text": event.text,
            "finish_reason": event.finish_reason,
        }
        if self._call.requests[0].sampling.logprobs is not None:
            listing, self._offsets[number] = self._form.logprobs(
                event.tokens, self._generator.token_text, self._offsets[number]
            )
            message["logprobs"] = listing
        return message

    def _message(self, kind: str) -> Json:
        return {"id": self._name, "type": kind}
