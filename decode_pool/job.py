"""One request in a decode replica: its sequence, its text, and the tokens not yet sent."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from engine.errors import TandemError
from engine.sequence import FinishReason, SampledToken, Sequence
from engine.text import Completion


@dataclass(frozen=True, slots=True)
class Emission:
    """Consecutive tokens and the text that became readable with them."""

    index: int
    tokens: tuple[SampledToken, ...]
    text: str
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Flush:
    """How long a token is held back, to be sent with those after it, and how many at most."""

    seconds: float = 0.0
    tokens: int = 1


class DecodeJob:
    """Collects what the loop samples until the servicer has sent it.

    What was not sent yet is merged, so a slow reader gets bigger pieces; `max_tokens` bounds them.
    The prompt of a `local` one is computed here, and its first token sampled.
    """

    def __init__(
        self,
        sequence: Sequence,
        completion: Completion,
        *,
        local: bool = False,
        flush: Flush | None = None,
    ) -> None:
        self.sequence = sequence
        self.local = local
        self._flush = flush or Flush()
        self._hold_s = 0.0
        self.first_s: float | None = None
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.offered = False
        self.finished = False
        self.preemptions = 0
        self._completion = completion
        self._error: TandemError | None = None
        self._ready = asyncio.Event()
        self._urgent = asyncio.Event()
        self._unread: list[SampledToken] = []
        self._tokens: list[SampledToken] = []
        self._text = ""
        self._finish_reason: FinishReason | None = None
        self._next_index = 0 if local else 1

    def take_first(self, token: int) -> None:
        """Note the first token, which the prefill replica has sent already."""
        self.sequence.tokens.append(token)
        self._completion.push(token)

    def take(self, token: SampledToken) -> None:
        """Add a sampled token; sets `finished` where its id or its place makes it the last.

        Also `first_s` at the first. Cheap, as the next step waits for it; `read` makes its text.
        """
        if self.first_s is None:
            self.first_s = time.monotonic()
        self.sequence.tokens.append(token.token)
        self._unread.append(token)
        self.finished = self._completion.ends_with(token.token)

    def read(self) -> None:
        """Turn what was taken into text for the servicer; a stop string sets `finished` too."""
        for token in self._unread:
            piece = self._completion.push(token.token)
            self._tokens.append(token)
            self._text += piece.text
            self._finish_reason = piece.finish_reason
        if self._unread:
            self._unread = []
            self.finished = self._finish_reason is not None
            self._ready.set()
            if self.finished or len(self._tokens) >= self._flush.tokens:
                self._urgent.set()

    def fail(self, error: TandemError) -> None:
        """End the request with an error, after what was sampled before."""
        self.read()
        self._error = error
        self._ready.set()
        self._urgent.set()
        if not self.granted.done():
            self.granted.set_exception(error)

    @property
    def drained(self) -> bool:
        """Whether the last token was handed out."""
        return self._finish_reason is not None and not self._tokens

    async def next(self) -> Emission:
        """Everything sampled since the last call, waiting for at least one token.

        The first is given at once, and so are the last ones; others are held back by `flush`.
        """
        await self._ready.wait()
        if self._hold_s and not self._urgent.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._hold_s):
                    await self._urgent.wait()
        self._ready.clear()
        self._urgent.clear()
        if not self._tokens:
            raise self._error or AssertionError("woken without a token")
        emission = Emission(self._next_index, tuple(self._tokens), self._text, self._finish_reason)
        self._next_index += len(self._tokens)
        self._tokens, self._text = [], ""
        self._hold_s = self._flush.seconds
        if self._error:
            self._ready.set()
            self._urgent.set()
        return emission
