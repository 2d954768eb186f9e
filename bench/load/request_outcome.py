"""The outcome of each request, read from the notes of its client. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench.load.arrivals import Arrival
from bench.load.http_recording import BadAnswer, choices, text_of
from bench.load.open_loop import TOO_MANY, Try

# The number of tokens of a piece of text; 1 where only the server could count them.
Count = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One try of one request; all times are seconds from the start of the load.

    - `due_s`, `asked_s`: when the request was due, and when it was sent.
    - `messages`: the time and the number of tokens (at least 1) of each message.
    - `tokens`: the tokens that the server counted, or else their sum.
    - `meaningful_s`: when the first letter or digit came.
    - `finish`: why the server ended the answer.
    - `decided_s`: from arrival to the decision to refuse, by the server's clock.
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
        """Whether the server refused the request for lack of capacity."""
        return self.status == TOO_MANY

    @property
    def told_s(self) -> float | None:
        """From the decision to the refusal's end at the client, with the way of the request."""
        return None if self.decided_s is None else self.ended_s - self.asked_s - self.decided_s

    @property
    def complete(self) -> bool:
        """Whether all tokens came, or the model ended by itself."""
        whole = self.tokens >= self.wanted or (self.finish == "stop" and self.tokens > 0)
        return self.error is None and self.status == 200 and whole

    @property
    def ttft_s(self) -> float | None:
        """From the due time to the first token."""
        return self.messages[0][0] - self.due_s if self.messages else None

    @property
    def ttfmt_s(self) -> float | None:
        """From the due time to the first meaningful token."""
        return None if self.meaningful_s is None else self.meaningful_s - self.due_s

    @property
    def ttlt_s(self) -> float | None:
        """From the due time to the last token."""
        return self.messages[-1][0] - self.due_s if self.messages else None

    @property
    def mean_itl_s(self) -> float | None:
        """The mean ITL: from first to last token, over the tokens after the first."""
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

        The time before a message of n tokens counts as n times an n-th of it. If the messages do
        not add up to the server's count, all times are the mean.
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
    """Count every event with text as one token."""
    return 1 if text else 0


def read(tried: Try, arrival: Arrival, zero: float, count: Count = one_each) -> Outcome:
    """The outcome of a try, with any error; `zero` is the load's start on the same clock."""
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
            # A first token counts also if its text is not complete yet.
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
    """Whether a chunk has a chat's role and no token."""
    return "role" in (choice.get("delta") or {}) and not text_of(choice)


def _means(choice: dict[str, Any]) -> bool:
    return any(map(str.isalnum, text_of(choice)))
