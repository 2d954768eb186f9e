"""The bytes of the journal: what is refused, by which field, and when there is room again."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cluster.config.journal import JournalConfig
from cluster.journal.bounds import JournalBounds, StreamSize
from cluster.journal.entries import entry_bytes
from cluster.journal.keys import JournalKeys
from cluster.journal.records import JournalSeal
from engine.errors import InvalidRequest, Overloaded
from tests.cluster.discovery.members import SECRET
from tests.cluster.journal.streams import record, tokens

CONFIG = JournalConfig(stream_bytes=64 << 10, total_bytes=256 << 10, keep_s=20.0)
sizes = st.builds(
    StreamSize,
    st.integers(0, 100_000),
    st.integers(1, 2000),
    st.integers(1, 16),
    st.none() | st.integers(0, 20),
)


@given(sizes)
def test_a_stream_that_is_too_large_is_refused_by_the_field_that_makes_it_so(
    size: StreamSize,
) -> None:
    bounds = JournalBounds(CONFIG)
    try:
        bounds.reserve("a", size, 0.0)
        assert size.bytes <= CONFIG.stream_bytes
        assert bounds.used(0.0) == size.bytes
    except InvalidRequest as refused:
        assert size.bytes > CONFIG.stream_bytes
        assert bounds.used(0.0) == 0
        # The least value of that field, or of a field before it, would do.
        least = StreamSize(size.request_bytes, 1, 1, None)
        if refused.field == "prompt":
            assert least.bytes > CONFIG.stream_bytes
        elif refused.field == "n":
            one = StreamSize(size.request_bytes, size.max_tokens, 1, size.logprobs)
            assert one.bytes <= CONFIG.stream_bytes
        else:
            assert refused.field == "max_tokens"
            assert least.bytes <= CONFIG.stream_bytes


steps = st.lists(st.tuples(st.sampled_from(["begin", "end", "drop"]), sizes, st.floats(0, 9)))


@given(steps)
def test_the_total_is_never_passed_and_the_retry_time_is_right(
    steps: list[tuple[str, StreamSize, float]],
) -> None:
    bounds, now = JournalBounds(CONFIG), 0.0
    running: dict[str, int] = {}
    kept: list[tuple[float, int]] = []
    for number, (step, size, pause_s) in enumerate(steps):
        now += pause_s
        kept = [(until_s, need) for until_s, need in kept if until_s > now]
        if step == "begin":
            assume(size.bytes <= CONFIG.stream_bytes)
            used = sum(running.values()) + sum(need for _, need in kept)
            try:
                bounds.reserve(str(number), size, now)
                running[str(number)] = size.bytes
                assert used + size.bytes <= CONFIG.total_bytes
            except Overloaded as refused:
                assert used + size.bytes > CONFIG.total_bytes
                assert refused.retry_after_s is not None
                assert 0 < refused.retry_after_s <= CONFIG.keep_s
                if sum(running.values()) + size.bytes <= CONFIG.total_bytes:
                    again_s = now + refused.retry_after_s
                    left = sum(need for until_s, need in kept if until_s > again_s)
                    assert sum(running.values()) + left + size.bytes <= CONFIG.total_bytes
        elif running:
            name, need = running.popitem()
            if step == "end":
                bounds.ended(name, now)
                kept.append((now + CONFIG.keep_s, need))
            else:
                bounds.drop(name)
        assert bounds.used(now) == sum(running.values()) + sum(need for _, need in kept)
    bounds.ended("unknown", now)
    bounds.drop("unknown")


@pytest.mark.parametrize("count", [1, 8])
def test_the_estimate_covers_the_entries(count: int) -> None:
    seal, most = JournalSeal(SECRET, JournalKeys()).entries("A" * 22), 512
    entries = [
        seal.framed(index, 1, entry_bytes(tokens(index, count), None))
        for index in range(0, most, count)
    ]
    request = record().SerializeToString()
    size = StreamSize(len(request), max_tokens=most)
    assert len(request) + sum(map(len, entries)) <= size.bytes
