"""Makes OpenAI's replies from events: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from cluster.api import Event, Generator, Started, Summary, Tokens, ToolCallDelta
from cluster.api.event_streams import closing, merge
from cluster.api.limits import MAX_NUMBERS
from cluster.gateway.answers.chunk_stream import ChunkStream
from cluster.gateway.answers.stream_note import StreamNote
from cluster.gateway.openai_chunks import Json, UsageCount, whole_parts
from cluster.gateway.openai_requests import OpenAICall
from cluster.gateway.sse import dump, dump_large
from cluster.journal.keys import new_stream_id
from engine.errors import Internal, InvalidRequest
from engine.types.sequence import FinishReason, SampledToken

# Bound: tokens of a whole reply that is written on the event loop.
_FEW_TOKENS = 1024


@dataclass(slots=True)
class _ReplyChoice:
    """One choice of the reply, as far as its events have come."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    sampled: list[SampledToken] = field(default_factory=list)
    finish: FinishReason | None = None


class OpenAIReply:
    """One call's reply; take either `whole()` or `events()`. `form` is a key of FORMS.

    `stream_id` is the id that its stream will have, or empty where it is not resumable.
    """

    def __init__(self, form: str, call: OpenAICall, generator: Generator) -> None:
        self._note = StreamNote.of(form, call)
        self._call = call
        self.stream_id = new_stream_id() if call.requests[0].resumable else ""
        self._generator = generator
        self._model = generator.model.name
        self._top = call.requests[0].sampling.logprobs
        self._choices = [_ReplyChoice() for _ in range(call.n * len(call.requests))]
        self._usage = UsageCount()
        self._chunks = ChunkStream(self._note, generator, len(call.requests))

    async def whole(self) -> bytes:
        """Collect everything; the reply as JSON. Raises a TandemError."""
        numbers = 0
        async with closing(self._merged()) as events:
            async for prompt_index, event in events:
                if isinstance(event, Tokens):
                    choice = self._choices[self._number(prompt_index, event)]
                    choice.texts.append(event.text)
                    choice.reasoning.append(event.reasoning)
                    choice.calls += event.tool_calls
                    choice.ids += event.ids
                    choice.finish = event.finish_reason
                    if self._top is not None:
                        choice.sampled += event.tokens
                        numbers += len(event.ids) * (1 + self._top)
                        _check_numbers(numbers)
                elif isinstance(event, Started):
                    self._model = event.model or self._model
                elif isinstance(event, Summary):
                    self._usage.add(event, prompt_index)
        self._usage.check(len(self._call.requests))
        if numbers + self._usage.completion_tokens <= _FEW_TOKENS:
            return dump(self._document())
        return await asyncio.to_thread(lambda: dump_large(self._document()))

    def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, only comments before the first token; raises a TandemError."""
        return self._chunks.events(self._merged())

    def _document(self) -> Json:
        choices = [self._whole_choice(number, one) for number, one in enumerate(self._choices)]
        timing = {"timing": self._usage.timing(self._call.n)} if self._note.timing else {}
        return timing | {
            "id": self._note.layout.prefix + self._call.request_id,
            "object": self._note.layout.whole_object,
            "created": self._note.created,
            "model": self._model,
            "choices": choices,
            "usage": self._usage.json(),
        }

    def _whole_choice(self, number: int, choice: _ReplyChoice) -> Json:
        listing, form = None, self._note.layout
        if choice.sampled:
            offsets = self._generator.offsets()
            listing = form.logprobs(choice.sampled, self._generator.token_text, offsets)
        parts = whole_parts(choice.reasoning, choice.calls)
        whole = form.whole(number, "".join(choice.texts), listing, choice.finish, parts)
        return whole | {"token_ids": choice.ids} if self._call.token_ids else whole

    def _merged(self) -> AsyncIterator[tuple[int, Event]]:
        requests = self._call.requests
        if requests[0].resumable:
            note, stream_id = self._note.text(), self.stream_id
            requests = (replace(requests[0], note=note, stream_id=stream_id),)
        return merge([self._generator.generate(request) for request in requests])

    def _number(self, prompt_index: int, event: Tokens) -> int:
        if event.choice >= self._call.n:
            raise Internal(f"tokens of choice {event.choice} of {self._call.n}")
        return prompt_index * self._call.n + event.choice


def _check_numbers(numbers: int) -> None:
    if numbers > MAX_NUMBERS:
        raise InvalidRequest(
            f"the answer has more than {MAX_NUMBERS} log-probabilities: stream it, or ask for fewer"
        )
