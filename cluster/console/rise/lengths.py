"""Whether prompts or answers were longer in a slow time than beside it, and whose. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from cluster.console.rise.slow_span import LEAST_VALUES, Span, is_in
from cluster.console.ttft_sample import TtftSample

# The least factor that is said.
_LEAST_FACTOR = 1.5
# A tenant is named if it has so much of the tokens in the slow time.
_MOST_OF_IT = 0.5


@dataclass(frozen=True, slots=True)
class TextLength:
    """The tokens of one prompt or answer, at the first token of its request."""

    at: float
    tenant: str
    tokens: int


def answer_of(sample: TtftSample) -> TextLength | None:
    """The length of the answer; None for a request that runs, or got no more than its prompt."""
    if not sample.answer_tokens:
        return None
    return TextLength(sample.at, sample.tenant, sample.answer_tokens)


def longer(name: str, counts: Sequence[TextLength], span: Span, slow_times: Sequence[Span]) -> str:
    """The mean length in the span and beside all slow times; "" where it does not stand out."""
    slow = [one for one in counts if is_in(one.at, span)]
    usual = [one for one in counts if not any(is_in(one.at, each) for each in slow_times)]
    if min(len(slow), len(usual)) < LEAST_VALUES:
        return ""
    now, before = (fmean(one.tokens for one in group) for group in (slow, usual))
    if now < max(1.0, _LEAST_FACTOR * before):
        return ""
    by_tenant: dict[str, int] = {}
    for one in slow:
        by_tenant[one.tenant] = by_tenant.get(one.tenant, 0) + one.tokens
    tenant, most = max(by_tenant.items(), key=lambda item: item[1])
    share = most / sum(by_tenant.values())
    whose = f"; {tenant} has {share:.0%} of the tokens" if share >= _MOST_OF_IT else ""
    number = f"{len(slow):,} {name}"
    return f"{now:,.0f} tokens in the mean of {number} instead of {before:,.0f}{whose}"
