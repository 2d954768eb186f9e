"""One request in a decode replica: its sequence, its text, and the tokens not yet sent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from decode_pool.entry import DecodeWait
from decode_pool.step_tally import StepCount
from engine.errors import Internal, TandemError
from engine.text.completion import ChoiceText
from engine.types.sequence import FinishReason, SampledToken, Sequence

log = logging.getLogger(__name__)

NOW = 0.0
_NO_STEPS = StepCount()
Ready = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Emission:
    """Consecutive tokens, from token `index` on, and the text that became readable with them."""

    index: int
    tokens: tuple[SampledToken, ...]
    text: str
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Flush:
    """The longest delay of a token that is sent with the next tokens, and their number.

    A token is sent at once if the last tokens were sent before that delay, because so slow a
    stream has no next tokens to wait for.
    """

    seconds: float = 0.0
    tokens: int = 1


class DecodeJob:
    """Collects the sampled tokens of a request until they are sent.

    Tokens that were not sent yet are merged, so a slow reader gets bigger pieces; `max_tokens`
    bounds them. The prompt of a `local` job is computed here, and its first token sampled. A
    sequence with output has failed over: another replica sent that output, and the job goes on
    after it. `waited_for` is what its offer of KV waited for. `drained` resolves when the last
    token was collected, or fails with the request's error. `stepped_to` counts the replica's steps
    up to its last token. `steps` are its own when it ended: those in which it had a token.
    """

    def __init__(
        self,
        sequence: Sequence,
        completion: ChoiceText,
        *,
        local: bool = False,
        flush: Flush | None = None,
    ) -> None:
        self.sequence = sequence
        self.local = local
        self.failed_over = local and sequence.output_tokens > 0
        self._flush = flush or Flush()
        self.collected_s = float("-inf")
        self.first_s: float | None = None
        loop = asyncio.get_running_loop()
        self.granted: asyncio.Future[None] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()
        self.offered = False
        self.waited_for: DecodeWait = "nothing"
        self.finished = False
        self.preemptions = 0
        self.stepped_to = self._stepped_from = _NO_STEPS
        self.steps = _NO_STEPS
        self.straggler_steps = 0
        self.recomputed_tokens = 0
        self._completion = completion
        self._error: TandemError | None = None
        self._ready: Ready | None = None
        self._unread: list[SampledToken] = []
        self._tokens: list[SampledToken] = []
        self._text = ""
        self._finish_reason: FinishReason | None = None
        self._next_index = sequence.output_tokens if local else 1
        if self.failed_over:
            for token in sequence.tokens[sequence.prompt_tokens :]:
                completion.push(token)

    def take_first(self, token: int) -> None:
        """Note the first token, which the prefill replica has sent already."""
        self.sequence.tokens.append(token)
        self._completion.push(token)

    def take(self, token: SampledToken) -> None:
        """Add a sampled token; sets `finished` where its id or the length makes it the last.

        The first token sets `first_s`. This is cheap, because the next step waits for it; `read`
        makes the text.
        """
        if self.first_s is None:
            self.first_s = time.monotonic()
        self.sequence.tokens.append(token.token)
        self._unread.append(token)
        self.finished = self._completion.ends_with(token.token)

    def begin_steps(self, before: StepCount) -> None:
        """Note that the request takes part in the steps behind `before`, and left out some."""
        self.end_steps()
        self._stepped_from = before

    def end_steps(self) -> None:
        """Add the last steps that followed each other to `steps`."""
        self.steps = self.steps.plus(self.stepped_to.since(self._stepped_from))
        self._stepped_from = self.stepped_to

    def read(self) -> None:
        """Turn the taken tokens into text to be collected; a stop string sets `finished` too.

        A fault in this text ends the request, and nothing else.
        """
        if not self._unread:
            return
        begun = bool(self._tokens)
        unread, self._unread = self._unread, []
        try:
            for token in unread:
                piece = self._completion.push(token.token)
                self._tokens.append(token)
                self._text += piece.text
                self._finish_reason = piece.finish_reason
        except Exception:
            log.exception("no text for a token", extra=self.sequence.named_in_log)
            self.fail(Internal("the text of the answer could not be made"))
            return
        self.finished = self._finish_reason is not None
        if self.finished or len(self._tokens) >= self._flush.tokens:
            self._tell(NOW)
        elif not begun:
            now = time.monotonic()
            slow = now - self.collected_s >= self._flush.seconds
            self._tell(NOW if slow else now + self._flush.seconds)

    def read_stops(self) -> None:
        """Read the tokens at once if a stop string may end the text, before the next step."""
        if self.sequence.sampling.stop:
            self.read()

    def fail(self, error: TandemError) -> None:
        """End the request with an error, after the tokens that were sampled before."""
        self.read()
        self._error = self._error or error
        self.finished = True
        if self._tokens:
            self._tell(NOW)
        else:
            self._end()
        if not self.granted.done():
            self.granted.set_exception(self._error)

    def listen(self, ready: Ready) -> None:
        """Have `ready` called with the time (monotonic) at which `collect` is due.

        The first and the last tokens are due at once; `flush` delays the others.
        """
        self._ready = ready
        if self._tokens:
            ready(NOW)

    def cancel(self) -> None:
        """Note that no caller waits for the request any more; `ready` is called no more."""
        self._ready = None
        self.granted.cancel()

    def collect(self) -> Emission | None:
        """The tokens and text since the last time; None where there are none."""
        if not self._tokens:
            return None
        emission = Emission(self._next_index, tuple(self._tokens), self._text, self._finish_reason)
        self._next_index += len(self._tokens)
        self._tokens, self._text = [], ""
        self.collected_s = time.monotonic()
        if self._finish_reason is not None or self._error is not None:
            self._end()
        return emission

    def _tell(self, due_s: float) -> None:
        if self._ready is not None:
            self._ready(due_s)

    def _end(self) -> None:
        if self.drained.done():
            return
        if self._error is None:
            self.drained.set_result(None)
            return
        self.drained.set_exception(self._error)
        # Retrieved here: a request that ended before it was admitted has no reader.
        self.drained.exception()
