"""Every figure that is said of a rise can be found again in the first tokens and answers."""

from __future__ import annotations

import re
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.console.rise.slow_span import joined
from cluster.console.ttft_sample import STAGES
from tests.cluster.console.rise import made_traffic
from tests.cluster.console.rise.made_traffic import BEGIN, answers_of, rises

KINDS = (
    *("slow_replica", "burst", "full_kv", "burst_and_slow_replica", "lost_replica"),
    *("late_router", "capped_tenant", "new_replicas", "two_rises"),
)
TIME = r"([\d,.]+ (?:ms|s|min))"
HEAD = re.compile(
    rf"TTFT of (\w+) (?:has been|was) high for {TIME}(?: until {TIME} ago)?[^:]*: {TIME} in the "
    rf"mean of ([\d,]+) requests instead of {TIME}(?: in the mean of only (\d+))?\. "
)
ON_REPLICA = re.compile(
    rf"(\S+#\d) \({TIME} a request(?: instead of {TIME}|, none before), (\d+)% of the added time\)"
)
SENT = re.compile(r"(\w+) \(it sent ([\d.]+) times its usual prompt tokens( to (\w+)| over all)?")
HIT = re.compile(r"(\w+) is hit most \((\d+)% of the added time\)")
LONGER = re.compile(
    r"(Prompts|Answers) were longer: ([\d,]+) tokens in the mean of ([\d,]+) \w+ "
    r"instead of ([\d,]+)(?:; (\w+) has (\d+)% of the tokens)?\."
)
ALSO = re.compile(
    rf"It was high {TIME} (?:before|later), too, for {TIME}: {TIME} in the mean of ([\d,]+) "
    r"requests\."
)
STAGE = re.compile(r"\((\d+)%\)")


def is_near(text, value):
    """Whether a said time, in seconds, or a percentage of 1, is the value, as far as it is said."""
    number, _, unit = text.replace(",", "").partition(" ")
    factor = {"ms": 1e-3, "s": 1.0, "min": 60.0, "": 1.0}[unit]
    digits = len(number.partition(".")[2])
    return abs(float(number) * factor - value) <= 0.5001 * factor * 10**-digits


class Found:
    """The figures of a rise, found again."""

    def __init__(self, rise, every_rise, samples, answers):
        self.rise, self.samples, self.answers = rise, samples, answers
        times = [each for one in every_rise for each in (one, *one.also)]
        self.slow_times = joined((one.begin, one.end) for one in times)
        self.span = rise.begin, rise.end
        self.spans = [self.span, *((one.begin, one.end) for one in rise.also)]
        own = [one for one in samples if one.endpoint == rise.endpoint]
        self.slow = [one for one in own if self.is_in(one.at)]
        self.usual = [one for one in own if self.is_usual(one.at)]
        self.added_s = mean(self.slow) - mean(self.usual)

    def is_in(self, at):
        return self.span[0] <= at <= self.span[1]

    def is_usual(self, at):
        return not any(begin <= at <= end for begin, end in self.spans)

    def is_calm(self, at):
        """Whether no endpoint was slow."""
        return not any(begin <= at <= end for begin, end in self.slow_times)

    def share(self, stage):
        slow, usual = (
            fmean(one.stages[STAGES.index(stage)] for one in group)
            for group in (self.slow, self.usual)
        )
        return (slow - usual) / self.added_s

    def on(self, replica):
        """The mean seconds on a replica then and before, and its share of the added time."""
        pool = self.rise.cause.pool
        slow, usual = (
            [found for one in group if (found := one.in_pool(pool))]
            for group in (self.slow, self.usual)
        )
        usual_s = fmean(seconds for _, seconds in usual)
        here = [seconds for name, seconds in slow if name == replica]
        before = [seconds for name, seconds in usual if name == replica]
        share = sum(one - usual_s for one in here) / len(self.slow) / self.added_s
        return fmean(here), fmean(before) if before else None, share

    def times_sent(self, tenant, endpoint):
        arrivals = [one.at - one.ttft_s for one in self.samples]
        first, last = min(arrivals), max(arrivals)
        (length, *_), slow_s = (
            [max(0.0, min(last, end) - max(first, begin)) for begin, end in spans]
            for spans in (self.spans, self.slow_times)
        )
        sent = usual = 0
        for one, at in zip(self.samples, arrivals, strict=True):
            if one.tenant == tenant and endpoint in (None, one.endpoint):
                sent += one.prompt_tokens if self.is_in(at) else 0
                beside = self.is_calm(at) and self.is_calm(one.at)
                usual += one.prompt_tokens if beside else 0
        return sent / (usual * length / (last - first - sum(slow_s)))

    def tokens(self, name):
        known = [(one.at, one.tenant, one.prompt_tokens) for one in self.samples]
        if name == "Answers":
            known = [(one.at, one.tenant, one.tokens) for one in self.answers]
        slow = [one for one in known if self.is_in(one[0])]
        return slow, [one for one in known if self.is_calm(one[0])]


def mean(samples):
    return fmean(one.ttft_s for one in samples)


def check(rise, every_rise, samples, answers, after_s=0.0):
    found, left = Found(rise, every_rise, samples, answers), rise.words
    now = max(one.at for one in samples) + after_s
    head = HEAD.match(left)
    assert head, left
    endpoint, length, ago, slow_s, count, usual_s, few = head.groups()
    assert endpoint == rise.endpoint and rise.end <= now
    assert is_near(length, rise.end - rise.begin) and is_near(slow_s, mean(found.slow))
    assert ago is None or is_near(ago, now - rise.end)
    assert is_near(usual_s, mean(found.usual)) and int(count.replace(",", "")) == len(found.slow)
    assert few is None or int(few) == len(found.usual)
    left = left[head.end() :]
    for replica, slow_s, usual_s, percent in ON_REPLICA.findall(left):
        here_s, before_s, share = found.on(replica)
        assert is_near(slow_s, here_s) and is_near(percent, min(100, 100 * share))
        assert is_near(usual_s, before_s) if usual_s else before_s is None
    for tenant, times, where, endpoint in SENT.findall(left):
        assert is_near(times, found.times_sent(tenant, endpoint or None)), (where, left)
    for tenant, percent in HIT.findall(left):
        own = [one.ttft_s - mean(found.usual) for one in found.slow if one.tenant == tenant]
        assert is_near(percent, min(100, 100 * sum(own) / len(found.slow) / found.added_s))
    for name, now_mean, number, before_mean, tenant, percent in LONGER.findall(left):
        slow, usual = found.tokens(name)
        assert int(number.replace(",", "")) == len(slow)
        assert is_near(now_mean, fmean(one[2] for one in slow))
        assert is_near(before_mean, fmean(one[2] for one in usual))
        own = sum(one[2] for one in slow if one[1] == tenant)
        assert not tenant or is_near(percent, 100 * own / sum(one[2] for one in slow))
    for one, (_, length, slow_s, count) in zip(rise.also, ALSO.findall(left), strict=True):
        then = [
            each
            for each in samples
            if each.endpoint == rise.endpoint and one.begin <= each.at <= one.end
        ]
        assert is_near(length, one.end - one.begin) and is_near(slow_s, mean(then))
        assert int(count.replace(",", "")) == len(then)
    percents = [f"{min(100.0, 100 * found.share(stage)):.0f}" for stage in rise.cause.stages]
    assert STAGE.findall(rise.facts["stage"]) == percents
    for pattern in (ON_REPLICA, SENT, HIT, LONGER, ALSO, STAGE):
        left = pattern.sub("", left)
    # Names of replicas, and the number of tenants and replicas, are left.
    left = re.sub(r"\w+#\d|\d tenants sent|none of \d|None of \d", "", left)
    assert not re.search(r"\d", left), left


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 10**6),
    st.integers(15, 600),
    st.integers(150, 300),
    st.sampled_from([0.0, 3.0, 90.0, 400.0]),
    st.sampled_from([24, 500]),
)
def test_every_figure_is_found_again(kind, seed, begin, length, after_s, tokens):
    samples = getattr(made_traffic, kind)(seed, begin, begin + length)
    answers = answers_of(samples, begin, begin + length, tokens)
    found = rises(samples, answers, after_s)
    for rise in found:
        check(rise, found, samples, answers, after_s)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_a_rise_with_figures(kind):
    samples = getattr(made_traffic, kind)(7, 400, 700)
    answers = answers_of(samples, 400, 700, 500)
    found = rises(samples, answers)
    assert found
    for rise in found:
        check(rise, found, samples, answers)
        assert rise.begin >= BEGIN + 330
