"""Says why TTFT rose: by stage, pool, replica, tenant, and the reason of waits. Pure.

The slow time of an endpoint is compared with all other requests of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cluster.console.rise.advice import advice_of
from cluster.console.rise.cause import RiseCause, cause_of
from cluster.console.rise.lengths import TextLength, longer
from cluster.console.rise.sent_load import sent_loads
from cluster.console.rise.sentences import cause_in_short, facts_of, sentence_of
from cluster.console.rise.shares import MOST_SHOWN, RiseShare, RiseShares, mean_s, shares_of
from cluster.console.rise.slow_span import LEAST_VALUES, Span, is_in, slow_spans
from cluster.console.time_series import STEP_S
from cluster.console.ttft_sample import TtftSample
from cluster.display_text import exact_time, long_time

# The least of a rise that is explained: a factor, and seconds.
_LEAST_FACTOR = 1.5
_LEAST_S = 0.02
# A rise goes on if it ended at most so long ago.
_GOES_ON_S = 3 * STEP_S
# A rise comes from new replicas if it begins at most so long after their first request, and if more
# than this part of the slow requests is on them.
_NEW_S, _MOST_NEW = 2 * STEP_S, 0.8
# Fewer usual requests than that are told, since they say little.
_FEW = 20
_Samples = Sequence[TtftSample]


@dataclass(frozen=True, slots=True)
class SlowTime:
    """A time of slow first tokens, in seconds since the epoch, and their number and mean TTFT."""

    begin: float
    end: float
    requests: int
    slow_s: float


@dataclass(frozen=True, slots=True)
class TtftRise:
    """A rise of the TTFT of an endpoint, from `begin` to `end` (seconds since the epoch).

    `words` say all of it in a few sentences, and `facts` in a few words for each question. `advice`
    says what to do, and `runbook` names the page for it. The console and `tandem top` show the same
    texts. `also` are other slow times of the endpoint; none of them counts as usual.
    """

    endpoint: str
    begin: float
    end: float
    slow_s: float
    usual_s: float
    requests: int
    cause: RiseCause
    words: str
    facts: dict[str, str]
    advice: str
    runbook: str
    also: list[SlowTime]
    stages: list[RiseShare]
    pools: list[RiseShare]
    replicas: list[RiseShare]
    tenants: list[RiseShare]
    reasons: list[RiseShare]

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data."""
        return asdict(self)


def rises(
    samples: _Samples, now: float, answers: Sequence[TextLength] = (), most: int = 4
) -> list[TtftRise]:
    """The endpoints whose TTFT rose, the most added seconds first.

    `now` is in seconds since the epoch. `answers` are of requests that ended.
    """
    by_endpoint: dict[str, list[TtftSample]] = {}
    for one in samples:
        by_endpoint.setdefault(one.endpoint, []).append(one)
    groups = by_endpoint.values()
    # What is too little to stand out at one endpoint may do so over all of them.
    common = slow_spans([each for group in groups for each in _placed(group)])
    slow = [(one, times) for one in groups if (times := _slow_times(one, common))]
    spans = [(each.begin, each.end) for _, times in slow for each in times]
    window = _RiseWindow(samples, answers, spans, now)
    found = [window.rise(own, times) for own, times in slow]
    found.sort(key=lambda rise: -(rise.slow_s - rise.usual_s) * rise.requests)
    return [_beside(rise, found) for rise in found[:most]]


def _placed(samples: _Samples) -> list[tuple[float, float]]:
    """The place of each TTFT among those of its endpoint, from 0 to 1, behind its time."""
    order = sorted(samples, key=lambda one: one.ttft_s)
    return [(one.at, (place + 0.5) / len(order)) for place, one in enumerate(order)]


def _slow_times(samples: _Samples, common: list[Span]) -> list[SlowTime]:
    """The times in which the first tokens of an endpoint were slow enough for a rise."""
    spans = slow_spans([(one.at, one.ttft_s) for one in samples]) or common
    while spans:
        usual = _outside(samples, spans)
        if len(usual) < LEAST_VALUES:
            return []
        found = [each for span in spans if (each := _slow_time(samples, span, mean_s(usual)))]
        if len(found) == len(spans):
            return found
        # What is no rise counts as usual, also for the others.
        spans = [(one.begin, one.end) for one in found]
    return []


def _slow_time(samples: _Samples, span: Span, usual_s: float) -> SlowTime | None:
    slow = [one for one in samples if is_in(one.at, span)]
    if len(slow) < LEAST_VALUES:
        return None
    slow_s = mean_s(slow)
    if slow_s - usual_s < max(_LEAST_S, (_LEAST_FACTOR - 1) * usual_s):
        return None
    return SlowTime(*span, len(slow), slow_s)


@dataclass(frozen=True, slots=True)
class _RiseWindow:
    """All first tokens and answers of a window that ends `now`, and the slow times in it."""

    everything: _Samples
    answers: Sequence[TextLength]
    slow_times: Sequence[Span]
    now: float

    def rise(self, samples: _Samples, times: Sequence[SlowTime]) -> TtftRise:
        """The rise of an endpoint with these slow times; the newest one, if it goes on."""
        usual = _outside(samples, [(one.begin, one.end) for one in times])
        usual_s = mean_s(usual)
        latest = times[-1]
        largest = max(times, key=lambda one: (one.slow_s - usual_s) * one.requests)
        shown = latest if self._goes_on(latest) else largest
        return self._explained(shown, [one for one in times if one is not shown], samples, usual)

    def _so_far(self, time: SlowTime) -> SlowTime:
        """The time without what is still to come of its last step."""
        return replace(time, end=max(time.begin, min(time.end, self.now)))

    def _goes_on(self, time: SlowTime) -> bool:
        return self.now - time.end < _GOES_ON_S

    def _explained(
        self, time: SlowTime, also: list[SlowTime], samples: _Samples, usual: _Samples
    ) -> TtftRise:
        span = time.begin, time.end
        shares, cause = self._cause(time, samples, usual)
        others = [(self._so_far(one), self._cause(one, samples, usual)[1]) for one in also]
        facts = facts_of(cause, shares)
        lengths = self._lengths(cause, span)
        advice = advice_of(cause, longer_prompts="prompts" in lengths)
        time = self._so_far(time)
        words = [
            f"TTFT of {samples[0].endpoint} {self._when(time, samples)}: {_took(time, usual)}.",
            sentence_of(cause, shares, facts, lengths),
            *(f"{_also(one, time)} {cause_in_short(then)}".rstrip() for one, then in others),
        ]
        return TtftRise(
            endpoint=samples[0].endpoint,
            begin=time.begin,
            end=time.end,
            slow_s=time.slow_s,
            usual_s=mean_s(usual),
            requests=time.requests,
            cause=cause,
            words=" ".join(words),
            facts=facts | lengths,
            advice=advice.text,
            runbook=advice.runbook,
            also=[one for one, _ in others],
            stages=shares.stages[:MOST_SHOWN],
            pools=shares.pools[:MOST_SHOWN],
            replicas=shares.replicas[:MOST_SHOWN],
            tenants=shares.tenants[:MOST_SHOWN],
            reasons=shares.reasons[:MOST_SHOWN],
        )

    def _cause(
        self, time: SlowTime, samples: _Samples, usual: _Samples
    ) -> tuple[RiseShares, RiseCause]:
        """The shares of the added time, and the cause that they tell."""
        span = time.begin, time.end
        slow = [one for one in samples if is_in(one.at, span)]
        shares = shares_of(slow, usual, sent_loads(self.everything, span, self.slow_times))
        fresh = _are_new(slow, samples, shares.pools[0].name, time.begin)
        return shares, cause_of(len(slow), shares, fresh=fresh)

    def _lengths(self, cause: RiseCause, span: Span) -> dict[str, str]:
        """What was longer of all endpoints, as far as it concerns the pool: they share it."""
        found: dict[str, str] = {}
        if cause.pool == "prefill":
            prompts = [
                TextLength(one.at, one.tenant, one.prompt_tokens)
                for one in self.everything
                if one.prompt_tokens
            ]
            found["prompts"] = longer("prompts", prompts, span, self.slow_times)
        elif cause.pool == "decode":
            found["answers"] = longer("answers", self.answers, span, self.slow_times)
        return {name: text for name, text in found.items() if text}

    def _when(self, time: SlowTime, samples: _Samples) -> str:
        length = long_time(time.end - time.begin)
        if self._goes_on(time):
            return f"has been high for {length}"
        until = f"was high for {length} until {long_time(self.now - time.end)} ago"
        came = any(one.at > time.end for one in samples)
        return f"{until}, and is as usual now" if came else f"{until}; no first token came since"


def _outside(samples: _Samples, spans: Sequence[Span]) -> list[TtftSample]:
    return [one for one in samples if not any(is_in(one.at, each) for each in spans)]


def _are_new(slow: _Samples, samples: _Samples, pool: str, begin: float) -> bool:
    """Whether most slow requests were on replicas of the pool that had none before.

    It says nothing of a pool that had no requests at all before.
    """
    on = [(one.at, found[0]) for one in samples if (found := one.in_pool(pool)) is not None]
    old = {name for at, name in on if at < begin - _NEW_S}
    names = [found[0] for one in slow if (found := one.in_pool(pool)) is not None]
    return bool(old) and sum(name not in old for name in names) > _MOST_NEW * len(names)


def _took(time: SlowTime, usual: _Samples) -> str:
    now, before = exact_time(time.slow_s), exact_time(mean_s(usual))
    few = f" in the mean of only {len(usual)}" if len(usual) < _FEW else ""
    return f"{now} in the mean of {time.requests:,} requests instead of {before}{few}"


def _also(one: SlowTime, shown: SlowTime) -> str:
    """Another slow time, in a sentence."""
    apart = shown.begin - one.end
    when = (
        f"{long_time(apart)} before" if apart > 0 else f"{long_time(one.begin - shown.end)} later"
    )
    took = f"{exact_time(one.slow_s)} in the mean of {one.requests:,} requests"
    return f"It was high {when}, too, for {long_time(one.end - one.begin)}: {took}."


def _beside(rise: TtftRise, found: Sequence[TtftRise]) -> TtftRise:
    """The rise with the names of the other endpoints that were slow at that time."""
    others = [
        one.endpoint
        for one in found
        if one is not rise and one.begin < rise.end and rise.begin < one.end
    ]
    if not others:
        return rise
    return replace(rise, words=f"{rise.words} Slow at that time, too: {', '.join(others)}.")
