"""Makes OpenAI's replies from events: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

from cluster.api import Event, Generator, Heartbeat, Progress, Started, Summary, Tokens
from cluster.api.event_streams import closing, merge
from cluster.api.limits import MAX_NUMBERS
from cluster.api.off_loop import write_event
from cluster.gateway.openai_chunks import Form, Json, progress_json
from cluster.gateway.openai_requests import OpenAICall
from cluster.gateway.sse import DONE, HEARTBEAT, comment, data, dump, dump_large
from engine.errors import Internal, InvalidRequest
from engine.types.sequence import FinishReason, SampledToken

# Bound: tokens of a whole reply that is written on the event loop.
_FEW_TOKENS = 1024


@dataclass(slots=True)
class _ReplyChoice:
    """One choice of the reply, as far as its events have come."""

    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    sampled: list[SampledToken] = field(default_factory=list)
    offset: int = 0
    finish: FinishReason | None = None
    opened: bool = False


class OpenAIReply:
    """One call's reply; take either `whole()` or `events()`."""

    def __init__(self, form: Form, call: OpenAICall, generator: Generator) -> None:
        self._form = form
        self._call = call
        self._generator = generator
        self._created = int(time.time())
        self._model = generator.model.name
        self._top = call.requests[0].sampling.logprobs
        self._choices = [_ReplyChoice() for _ in range(call.n * len(call.requests))]
        self._usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        self._cached_tokens = 0
        self._summaries = 0
        self._frame: tuple[bytes, bytes] | None = None

    async def whole(self) -> bytes:
        """Collect everything; the reply as JSON. Raises a TandemError."""
        numbers = 0
        async with closing(self._merged()) as events:
            async for prompt_index, event in events:
                if isinstance(event, Tokens):
                    choice = self._choices[self._number(prompt_index, event)]
                    choice.texts.append(event.text)
                    choice.ids += event.ids
                    choice.finish = event.finish_reason
                    if self._top is not None:
                        choice.sampled += event.tokens
                        numbers += len(event.ids) * (1 + self._top)
                        _check_numbers(numbers)
                elif isinstance(event, Started | Summary):
                    self._note(event)
        self._check_whole()
        if numbers + self._usage["completion_tokens"] <= _FEW_TOKENS:
            return dump(self._document())
        return await asyncio.to_thread(lambda: dump_large(self._document()))

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, only comments before the first token; raises a TandemError."""
        async with closing(self._merged()) as events:
            async for prompt_index, event in events:
                if isinstance(event, Tokens):
                    number = self._number(prompt_index, event)
                    written = await write_event(event, partial(self._chunks, number))
                    if written:
                        yield written
                elif isinstance(event, Heartbeat):
                    yield HEARTBEAT
                elif isinstance(event, Progress):
                    number = prompt_index * self._call.n + event.choice
                    yield comment("progress", progress_json(event, number))
                elif isinstance(event, Started | Summary):
                    self._note(event)
        self._check_whole()
        if self._call.include_usage:
            envelope = self._envelope(self._form.chunk_object, [])
            yield data(envelope | {"usage": self._whole_usage()})
        yield DONE

    def _document(self) -> Json:
        choices = [self._whole_choice(number, one) for number, one in enumerate(self._choices)]
        return self._envelope(self._form.whole_object, choices) | {"usage": self._whole_usage()}

    def _whole_choice(self, number: int, choice: _ReplyChoice) -> Json:
        listing = None
        if choice.sampled:
            listing, _ = self._form.logprobs(choice.sampled, self._generator.token_text, 0)
        whole = self._form.whole(number, "".join(choice.texts), listing, choice.finish)
        return whole | {"token_ids": choice.ids} if self._call.token_ids else whole

    def _merged(self) -> AsyncIterator[tuple[int, Event]]:
        return merge([self._generator.generate(request) for request in self._call.requests])

    def _number(self, prompt_index: int, event: Tokens) -> int:
        if event.choice >= self._call.n:
            raise Internal(f"tokens of choice {event.choice} of {self._call.n}")
        return prompt_index * self._call.n + event.choice

    def _note(self, event: Started | Summary) -> None:
        if isinstance(event, Started):
            self._model = event.model or self._model
            return
        self._summaries += 1
        self._usage["prompt_tokens"] += event.prompt_tokens
        self._usage["completion_tokens"] += event.completion_tokens
        self._usage["total_tokens"] += event.prompt_tokens + event.completion_tokens
        self._cached_tokens += event.cached_tokens

    def _whole_usage(self) -> Json:
        return self._usage | {"prompt_tokens_details": {"cached_tokens": self._cached_tokens}}

    def _chunks(self, number: int, event: Tokens) -> bytes:
        """The event's chunk, after the choice's opening where it is the first."""
        choice = self._choices[number]
        written = b""
        first = not choice.opened
        choice.opened = True
        opening = self._form.opening(number) if first else None
        if opening is not None:
            written = self._chunk(opening)
        logprobs = self._logprobs(choice, event)
        ids = self._call.token_ids
        if first or event.text or event.finish_reason or logprobs or ids:
            delta = self._form.delta(number, event.text, logprobs, event.finish_reason)
            if ids:
                delta["token_ids"] = event.ids
            written += self._chunk(delta)
        return written

    def _chunk(self, choice: Json) -> bytes:
        if self._frame is None:
            self._frame = self._new_frame()
        head, tail = self._frame
        return head + dump(choice) + tail

    def _new_frame(self) -> tuple[bytes, bytes]:
        """The bytes before and behind the choice in each chunk, the same in all chunks."""
        envelope = dump(self._envelope(self._form.chunk_object, []))
        tail = b'],"usage":null}\n\n' if self._call.include_usage else b"]}\n\n"
        return b"data: " + envelope.removesuffix(b"]}"), tail

    def _logprobs(self, choice: _ReplyChoice, event: Tokens) -> Json | None:
        if self._top is None or not event.tokens:
            return None
        token_text = self._generator.token_text
        listing, choice.offset = self._form.logprobs(event.tokens, token_text, choice.offset)
        return listing

    def _check_whole(self) -> None:
        if self._summaries != len(self._call.requests):
            raise Internal("the reply ended early")

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self._form.prefix + self._call.request_id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


def _check_numbers(numbers: int) -> None:
    if numbers > MAX_NUMBERS:
        raise InvalidRequest(
            f"the answer has more than {MAX_NUMBERS} log-probabilities: stream it, or ask for fewer"
        )
