"""Which requests are traced."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from cluster.telemetry.traces.capped_sampler import CappedSampler


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def parent(*, sampled):
    context = SpanContext(7, 9, is_remote=True, trace_flags=TraceFlags(sampled))
    return set_span_in_context(NonRecordingSpan(context))


def sampled(sampler, context=None, trace_id=1):
    return sampler.should_sample(context, trace_id, "request chat").decision is not Decision.DROP


def test_so_many_traces_begin_in_a_second():
    clock = Clock()
    sampler = CappedSampler(1.0, 5, clock)
    assert sum(sampled(sampler) for _ in range(20)) == 5
    clock.now = 0.4
    assert sum(sampled(sampler) for _ in range(20)) == 2
    clock.now = 100.0
    assert sum(sampled(sampler, parent(sampled=True)) for _ in range(20)) == 5


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_client_s_flag_goes_before_the_share(share):
    sampler = CappedSampler(share, 50, Clock())
    assert sampled(sampler, parent(sampled=True))
    assert not sampled(sampler, parent(sampled=False))


def test_a_share_of_the_others_is_traced():
    sampler = CappedSampler(0.25, 1000, Clock())
    assert 200 < sum(sampled(sampler, trace_id=n * 2**54) for n in range(1000)) < 300
