"""A response as its events come: the document so far, and what a stream tells of it."""

from __future__ import annotations

from typing import Literal

from cluster.api import Event, Generator, Started, Summary, Tokens
from cluster.api.error_mapping import http_error
from cluster.gateway.openai_chunks import CHAT, Json, UsageCount
from cluster.gateway.responses.note import ResponseNote
from cluster.gateway.responses.output import OutputEvent, ResponseOutput
from engine.errors import Cancelled, InvalidRequest, Overloaded, TandemError
from protos.status import retry_after_ms

# Bound: characters and log-probabilities of a document that is written on the event loop.
_FEW_CHARACTERS = 16 * 1024
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class ResponseAnswer:
    """One response. `begun`: its request was admitted."""

    def __init__(self, note: ResponseNote, generator: Generator) -> None:
        self._note = note
        self._generator = generator
        self._model = generator.model.name
        self._output = ResponseOutput(note.request_id)
        self._usage = UsageCount()
        self._offsets = generator.offsets()
        self._numbers = 0  # log-probabilities so far
        self._waiting: list[Json] = []  # log-probabilities of tokens whose text is yet to come
        self._status: ResponseStatus = "in_progress"
        self._completed: int | None = None
        self._error: Json | None = None
        self.begun = False

    @property
    def in_background(self) -> bool:
        """Whether the response can be read by its id."""
        return bool(self._note.stream_id)

    @property
    def is_large(self) -> bool:
        """Whether the document takes long to write."""
        return self._output.characters + self._numbers > _FEW_CHARACTERS

    def take(self, event: Event) -> list[OutputEvent]:
        """What a stream tells of the next event."""
        match event:
            case Started():
                self._model = event.model or self._model
                self.begun = True
                return [self._whole("response.created"), self._whole("response.in_progress")]
            case Tokens():
                return self._output.take(event, self._logprobs(event))
            case Summary():
                self._usage.add(event)
                cut = self._output.finish == "length"
                self._status = "incomplete" if cut else "completed"
                if not cut:
                    self._completed = self._note.created + round(event.total_s)
                return [self._whole(f"response.{self._status}")]
        return []

    def failed(self, error: TandemError) -> list[OutputEvent]:
        """What a stream tells of the error that ended it, or the reading of it."""
        body = http_error(error)[1]["error"]
        told = {name: body[name] for name in ("message", "param")}
        told["code"] = body["code"] or body["type"]
        wait_ms = retry_after_ms(error)
        found: list[OutputEvent] = [
            ("error", told if wait_ms is None else told | {"retry_after_ms": wait_ms})
        ]
        if self.begun and (error.ended_stream or not self.in_background):
            self._status = "cancelled" if isinstance(error, Cancelled) else "failed"
            self._output.stop()
            if self._status == "failed":
                self._error = {"code": _code(error), "message": body["message"]}
            found.append(self._whole("response.failed"))
        return found

    def document(self) -> Json:
        """The response so far."""
        done = self._status in ("completed", "incomplete")
        cut = {"reason": "max_output_tokens"} if self._status == "incomplete" else None
        return {
            "id": self._note.response_id,
            "object": "response",
            "created_at": self._note.created,
            "status": self._status,
            "completed_at": self._completed,
            "error": self._error,
            "incomplete_details": cut,
            "model": self._model,
            "output": self._output.json(),
            "usage": self._usage_json() if done else None,
            **({"timing": self._usage.timing(1)} if done and self._note.timing else {}),
            **self._note.echo,
        }

    def check(self) -> None:
        """Raise Internal where the summary is missing."""
        self._usage.check(1)

    def _whole(self, kind: str) -> OutputEvent:
        return kind, {"response": self.document()}

    def _logprobs(self, event: Tokens) -> list[Json]:
        """The log-probabilities of the text of these tokens, and of tokens that waited for it."""
        if not self._note.logprobs:
            return []
        listing = CHAT.logprobs(event.tokens, self._generator.token_text, self._offsets)
        found = self._waiting + listing["content"]
        self._numbers += sum(1 + len(token.top) for token in event.sampled)
        has_parts = bool(event.text or event.reasoning or event.tool_calls)
        self._waiting = [] if has_parts else found
        return found if event.text else []

    def _usage_json(self) -> Json:
        usage, output = self._usage, self._output
        share = output.reasoning_characters / max(1, output.characters)
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": round(share * usage.completion_tokens)},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _code(error: TandemError) -> str:
    """The code of an error in a response, as OpenAI has it."""
    if isinstance(error, Overloaded):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"
