"""What became of each request, read from what its client noted. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench.load.arrivals import Arrival
from bench.load.http_recording import BadAnswer, choices, text_of
from bench.load.open_loop import TOO_MANY, Try

# How many tokens a piece of text is; one for each event where only the server could tell.
Count = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One try of one request; all moments are seconds from the start of the load.

    `due_s` is when it was to be sent and `asked_s` when it was; `messages` is what reached the
    client at once and when: tokens, at least one. `tokens` is what the server counted, or the sum.
    `meaningful_s` is when the first letter or digit came; `finish` is why the server ended it.
    `decided_s` is the time from its arrival to the decision to refuse it, by the server's clock.
    """

    index: int
    number: int
    phase: str
    due_s: float
    asked_s: float
    ended_s: float
    prompt_tokens: int
    wanted: int
    status: int | None = None
    tokens: int = 0
    messages: tuple[tuple[float, int], ...] = ()
    meaningful_s: float | None = None
    retry_after_s: float | None = None
    decided_s: float | None = None
    finish: str | None = None
    error: str | None = None

    @property
    def refused(self) -> bool:
        """The server said that it has no room now."""
        return self.status == TOO_MANY

    @property
    def told_s(self) -> float | None:
        """From that decision to the refusal's end at the client, and the request's way there."""
        return None if self.decided_s is None else self.ended_s - self.asked_s - self.decided_s

    @property
    def complete(self) -> bool:
        """All tokens came, or the model ended by itself."""
        whole = self.tokens >= self.wanted or (self.finish == "stop" and self.tokens > 0)
        return self.error is None and self.status == 200 and whole

    @property
    def ttft_s(self) -> float | None:
        """From when it was due to the first token."""
        return self.messages[0][0] - self.due_s if self.messages else None

    @property
    def ttfmt_s(self) -> float | None:
        """From when it was due to the first token that means something."""
        return None if self.meaningful_s is None else self.meaningful_s - self.due_s

    @property
    def ttlt_s(self) -> float | None:
        """From when it was due to the last token."""
        return self.messages[-1][0] - self.due_s if self.messages else None

    @property
    def mean_itl_s(self) -> float | None:
        """Time between tokens: first to last token, over the tokens after the first."""
        if self.tokens < 2 or not self.messages:
            return None
        return (self.messages[-1][0] - self.messages[0][0]) / (self.tokens - 1)

    @property
    def stall_s(self) -> float | None:
        """The longest time between two messages."""
        waits = [later - earlier for (earlier, _), (later, _) in pairwise(self.messages)]
        return max(waits, default=None)

    def itls_s(self) -> list[float]:
        """The time before each token after the first.

        A message of n tokens is n times an n-th of the time since the one before it. Where the
        pieces do not add up to the server's count, all times are the mean.
        """
        mean = self.mean_itl_s
        if mean is None:
            return []
        if sum(count for _, count in self.messages) != self.tokens:
            return [mean] * (self.tokens - 1)
        itls = [0.0] * (self.messages[0][1] - 1)
        for (earlier, _), (later, count) in pairwise(self.messages):
            itls += [(later - earlier) / count] * count
        return itls


def one_each(text: str) -> int:
    """Takes every event with text for one token."""
    return 1 if text else 0


def read(tried: Try, arrival: Arrival, zero: float, count: Count = one_each) -> Outcome:
    """The outcome of a try that started at `zero` on the same clock; whatever is wrong is in it."""
    asked = tried.answer.asked if tried.answer is not None else tried.due
    about: dict[str, Any] = {
        "index": tried.index,
        "number": tried.number,
        "phase": arrival.phase,
        "due_s": tried.due - zero,
        "asked_s": asked - zero,
        "ended_s": tried.ended - zero,
        "prompt_tokens": arrival.prompt_tokens,
        "wanted": arrival.new_tokens,
        "error": tried.error,
    }
    if tried.answer is None:
        return Outcome(**about)
    try:
        about["status"] = tried.answer.status()
        about["retry_after_s"] = tried.answer.retry_after_s()
        about["decided_s"] = tried.answer.decided_s()
        if about["status"] == 200:
            about |= _stream(tried.answer.events(), zero, count)
        elif about["status"] != TOO_MANY:
            tried.answer.events()
    except (BadAnswer, KeyError, TypeError, ValueError) as error:
        about["error"] = f"{type(error).__name__}: {error}"
    return Outcome(**about)


def _stream(events: list[tuple[float, dict[str, Any]]], zero: float, count: Count) -> Any:
    """Messages, tokens and the first meaningful one of a stream's events."""
    messages: list[tuple[float, int]] = []
    meaningful, total, finish = None, None, None
    for moment, event in events:
        usage = event.get("usage")
        total = usage["completion_tokens"] if usage else total
        for choice in choices(event):
            finish = choice.get("finish_reason") or finish
        tokens = sum(_tokens(choice, count) for choice in choices(event))
        if not messages and not all(map(_only_opens, choices(event))):
            # A first token whose text is not whole yet is a token all the same.
            tokens = max(tokens, 1)
        if not tokens:
            continue
        if meaningful is None and any(map(_means, choices(event))):
            meaningful = moment - zero
        if messages and messages[-1][0] == moment - zero:
            tokens += messages.pop()[1]
        messages.append((moment - zero, tokens))
    counted = sum(tokens for _, tokens in messages)
    return {
        "messages": tuple(messages),
        "meaningful_s": meaningful,
        "tokens": counted if total is None else total,
        "finish": finish,
    }


def _tokens(choice: dict[str, Any], count: Count) -> int:
    ids = choice.get("token_ids")
    return len(ids) if ids is not None else count(text_of(choice))


def _only_opens(choice: dict[str, Any]) -> bool:
    """Whether it names a chat's role and brings no token."""
    return "role" in (choice.get("delta") or {}) and not text_of(choice)


def _means(choice: dict[str, Any]) -> bool:
    return any(map(str.isalnum, text_of(choice)))
