"""How many prompt tokens each tenant sent in a slow time, over what it usually sends. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

from cluster.console.rise.slow_span import Span, is_in, joined
from cluster.console.time_series import STEP_S
from cluster.console.ttft_sample import TtftSample

# A tenant sent more if it sent so many times its usual load, and lies so many standard deviations
# above what chance gives.
_LEAST_FACTOR, _BEYOND_CHANCE = 1.5, 4.0
# An endpoint is named if it has so much of what a tenant sent beyond the usual.
_OF_TENANT = 0.8
# A tenant that sends so little of it usually has no figure for how many times as much it sent.
_NEXT_TO_NOTHING = 0.01


@dataclass(slots=True)
class _SentTokens:
    """Prompt tokens that were sent in the slow time, and that are usual in as long a time."""

    sent: float = 0.0
    expected: float = 0.0

    @property
    def beyond(self) -> float:
        return max(0.0, self.sent - self.expected)


@dataclass(slots=True)
class SentLoad:
    """What a tenant sent to all endpoints. `ratio`: the slow time over the time beside it."""

    ratio: float
    several: bool
    whole: _SentTokens = field(default_factory=_SentTokens)
    by_endpoint: dict[str, _SentTokens] = field(default_factory=dict)
    squares: float = 0.0
    longest: int = 0

    def add(self, one: TtftSample, *, slow: bool) -> None:
        """Count a prompt that arrived in the slow time or beside it."""
        self.longest = max(self.longest, one.prompt_tokens)
        self.squares += one.prompt_tokens**2
        for load in (self.whole, self.by_endpoint.setdefault(one.endpoint, _SentTokens())):
            if slow:
                load.sent += one.prompt_tokens
            else:
                load.expected += self.ratio * one.prompt_tokens

    @property
    def beyond(self) -> float:
        """The prompt tokens beyond the usual ones."""
        return self.whole.beyond

    @property
    def is_unusual(self) -> bool:
        """Whether it sent half more than usual, and more than chance explains.

        By chance each of its prompts came in the slow time with the same probability.
        """
        probability = self.ratio / (1 + self.ratio)
        all_tokens = self.whole.sent + self.whole.expected / self.ratio
        by_chance = sqrt(probability * (1 - probability) * self.squares + self.longest**2)
        beyond_chance = self.whole.sent > probability * all_tokens + _BEYOND_CHANCE * by_chance
        return beyond_chance and self.whole.sent > _LEAST_FACTOR * self.whole.expected

    def in_words(self) -> str:
        """How much more was sent, at the endpoint that got most of it."""
        name, most = max(self.by_endpoint.items(), key=lambda item: item[1].beyond)
        beyond = sum(one.beyond for one in self.by_endpoint.values())
        if self.several and most.beyond >= _OF_TENANT * beyond:
            return _times(most, f" to {name}")
        return _times(self.whole, " over all endpoints" if self.several else "")


def _times(load: _SentTokens, where: str) -> str:
    if load.expected == 0:
        return f"it sent nothing{where} before"
    if load.expected < _NEXT_TO_NOTHING * load.sent:
        return f"it sent next to nothing{where} before"
    return f"it sent {load.sent / load.expected:.1f} times its usual prompt tokens{where}"


def sent_loads(
    everything: Sequence[TtftSample], span: Span, slow_times: Sequence[Span]
) -> dict[str, SentLoad]:
    """The loads by tenant in the span, by the arrival of each prompt.

    What is usual is told by the time beside all `slow_times`; there are no loads where next to no
    time is left.
    """
    arrivals = [one.at - one.ttft_s for one in everything]
    first, last = min(arrivals), max(arrivals)
    slow_times = joined((span, *slow_times))
    slow_s = sum(_length_s(one, first, last) for one in slow_times)
    beside_s, span_s = last - first - slow_s, _length_s(span, first, last)
    if beside_s < STEP_S or not span_s:
        return {}
    ratio, several = span_s / beside_s, len({one.endpoint for one in everything}) > 1
    found: dict[str, SentLoad] = {}
    for one, arrived in zip(everything, arrivals, strict=True):
        slow = is_in(arrived, span)
        # What waited for its first token as a slow time began may belong to it.
        if slow or not any(is_in(at, each) for at in (arrived, one.at) for each in slow_times):
            load = found.setdefault(one.tenant, SentLoad(ratio, several))
            load.add(one, slow=slow)
    return found


def _length_s(span: Span, first: float, last: float) -> float:
    """The length of the span between the first and the last arrival."""
    return max(0.0, min(last, span[1]) - max(first, span[0]))
