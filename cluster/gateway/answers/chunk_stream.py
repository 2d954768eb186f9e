"""Writes an answer as server-sent events: from its beginning on, or behind what a client has.

Events of a resumable stream carry ids. One event of the stream is one chunk at most, so that a
client has an event whole or not at all. Comments have no empty line of their own there: for
OpenAI's client that line would end an event without data.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial

from cluster.api import Event, Generator, Started, Summary, Tokens
from cluster.api.event_streams import closing
from cluster.api.off_loop import write_event
from cluster.api.requests import TokenOffsets
from cluster.gateway.answers.comments import SilenceFiller, comment_of
from cluster.gateway.answers.stream_cursor import StreamCursor
from cluster.gateway.answers.stream_note import StreamNote
from cluster.gateway.openai_chunks import Json, UsageCount, parts_json, usage_json
from cluster.gateway.sse import DONE, data, dump
from engine.errors import Internal


class ChunkStream:
    """The events of one answer. `prompts` counts its prompts.

    With a `cursor` the answer goes on behind it; `offsets` has the offsets of its choices' tokens.
    """

    def __init__(
        self,
        note: StreamNote,
        generator: Generator,
        prompts: int = 1,
        cursor: StreamCursor | None = None,
        offsets: Sequence[TokenOffsets] = (),
    ) -> None:
        choices = note.n * prompts
        self._note = note
        self._form = note.layout
        self._generator = generator
        self._prompts = prompts
        self._cursor = cursor
        have = [] if cursor is None else cursor.have
        self._opened = [bool(count) for count in have] + [False] * (choices - len(have))
        new = choices - len(offsets) if note.logprobs else 0
        self._offsets = [*offsets, *(generator.offsets() for _ in range(new))]
        self._model = generator.model.name
        self._usage = UsageCount()
        self._prompt_tokens, self._tokens_so_far = 0, sum(have)
        self._frame: tuple[bytes, bytes] | None = None
        if cursor is not None:
            cursor.have += [0] * (choices - len(have))

    async def events(self, merged: AsyncIterator[tuple[int, Event]]) -> AsyncIterator[bytes]:
        """Server-sent events, only comments before the first token; raises a TandemError."""
        silence = SilenceFiller()
        async with closing(merged) as found:
            async for prompt_index, event in found:
                if isinstance(event, Tokens):
                    written = await self._tokens(prompt_index, event)
                else:
                    written = self._other(prompt_index, event)
                written = silence.filled(event, written)
                if written:
                    yield written
        self._usage.check(self._prompts)
        had_all = self._cursor is not None and self._cursor.ended
        if self._cursor is not None:
            self._cursor.ended = True
        if (self._note.include_usage or self._note.timing) and not had_all:
            yield self._id() + data(self._envelope() | self._ending())
        yield self._id() + DONE

    def _other(self, prompt_index: int, event: Event) -> bytes:
        match event:
            case Started():
                self._model = event.model or self._model
                self._prompt_tokens += event.prompt_tokens
                if event.stream_id and self._cursor is None:
                    self._cursor = StreamCursor(event.stream_id, [0] * self._note.n)
                return self._id()
            case Summary():
                self._usage.add(event, prompt_index)
            case _:
                return self._comment(comment_of(event, prompt_index * self._note.n))
        return b""

    async def _tokens(self, prompt_index: int, event: Tokens) -> bytes:
        if event.choice >= self._note.n:
            raise Internal(f"tokens of choice {event.choice} of {self._note.n}")
        number = prompt_index * self._note.n + event.choice
        self._tokens_so_far += len(event.ids)
        written = await write_event(event, partial(self._chunks, number))
        if self._cursor is None:
            return written
        self._cursor.add(event)
        return self._id() + written

    def _ending(self) -> Json:
        """What was asked for of the whole answer, for its last chunk."""
        ending: Json = {"usage": self._usage.json()} if self._note.include_usage else {}
        if self._note.timing:
            ending["timing"] = self._usage.timing(self._note.n)
        return ending

    def _id(self) -> bytes:
        return b"" if self._cursor is None else self._cursor.line()

    def _comment(self, written: bytes) -> bytes:
        return written if self._cursor is None else written[:-1]

    def _chunks(self, number: int, event: Tokens) -> bytes:
        """The event's chunks: the opening of its choice, its text, and the end of the choice.

        They are one where the stream is resumable.
        """
        opening = None if self._opened[number] else self._form.opening(number)
        first, self._opened[number] = not self._opened[number], True
        logprobs, finish = self._logprobs(number, event), event.finish_reason
        parts = parts_json(event)
        has_text = bool(event.text or parts or logprobs or self._note.token_ids)
        if not (first or has_text or finish):
            return b""
        resumable = self._cursor is not None
        in_delta = finish if resumable else None
        delta = self._form.delta(number, event.text, logprobs, in_delta, parts)
        if self._note.token_ids:
            delta["token_ids"] = event.ids
        if resumable:
            if opening is not None:
                delta["delta"] = opening["delta"] | delta["delta"]
            return self._chunk(delta)
        chunks = [] if opening is None else [opening]
        if has_text or (first and not finish):
            chunks.append(delta)
        if finish:
            ids: Json = {"token_ids": []} if self._note.token_ids else {}
            chunks.append(self._form.ending(number, finish) | ids)
        return b"".join(map(self._chunk, chunks))

    def _chunk(self, choice: Json) -> bytes:
        if self._frame is None:
            self._frame = self._new_frame()
        head, tail = self._frame
        if self._note.continuous_usage:
            usage = usage_json(self._prompt_tokens, self._tokens_so_far)
            tail = b'],"usage":' + dump(usage) + b"}\n\n"
        return head + dump(choice) + tail

    def _new_frame(self) -> tuple[bytes, bytes]:
        """The bytes before and behind the choice in each chunk, the same in all chunks."""
        tail = b'],"usage":null}\n\n' if self._note.include_usage else b"]}\n\n"
        return b"data: " + dump(self._envelope()).removesuffix(b"]}"), tail

    def _logprobs(self, number: int, event: Tokens) -> Json | None:
        if not self._note.logprobs or not event.tokens:
            return None
        return self._form.logprobs(event.tokens, self._generator.token_text, self._offsets[number])

    def _envelope(self) -> Json:
        return {
            "id": self._form.prefix + self._note.request_id,
            "object": self._form.chunk_object,
            "created": self._note.created,
            "model": self._model,
            "choices": [],
        }
