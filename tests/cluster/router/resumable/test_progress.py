"""How far a choice is that another router had: its tokens, and when they came."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from cluster.journal.entries import FirstTokenStages, JournalEntry
from cluster.journal.rebuild import rebuilt
from cluster.router.resumable.progress import so_far
from tests.cluster.journal.streams import record, tokens

FIRST = FirstTokenStages(
    0.25, 0.5, 1.0, 16, "decode-0", prefill_replica="prefill-0", prefill_share_s=0.125, sent_s=0.2
)


def choice_of(*after_s: float, ago_s: float = 10.0, first: FirstTokenStages | None = FIRST):
    """A request that arrived `ago_s` ago, whose tokens came `after_s`."""
    asked = record(arrived_at=time.time() - ago_s)
    asked.admitted_s = 0.125
    entries = [
        JournalEntry(at + 1, tokens(at), None if at else first, b"", each_s)
        for at, each_s in enumerate(after_s)
    ]
    (choice,) = so_far(rebuilt(asked, entries))
    return choice


def since_arrival(choice) -> list[float]:
    return [round(at_s - choice.times.began_s, 6) for at_s, _ in choice.earlier]


def test_its_tokens_have_the_times_of_their_entries():
    choice = choice_of(1.005, 1.5, 2.0)
    assert since_arrival(choice) == [1.005, 1.5, 2.0]
    assert [one.ids for _, one in choice.earlier] == [(100,), (101,), (102,)]
    times = choice.times
    assert times.began_s == pytest.approx(time.monotonic() - 10, abs=5)
    assert times.stopped_s - times.began_s == pytest.approx(2.0)
    assert times.sent_s - times.began_s == pytest.approx(0.2)
    assert (times.route, times.prefilled_by, choice.decode_replica) == (
        *("handed_over", "prefill-0", "decode-0"),
    )


def test_a_prompt_that_decode_computed_was_local():
    local = replace(FIRST, prefill_replica="decode-0")
    assert choice_of(1.005, first=local).times.route == "local"


def test_the_clock_of_another_host_does_not_bring_tokens_before_ttft_or_after_now():
    assert since_arrival(choice_of(0.5, 0.75, 1.5)) == [1.0, 1.0, 1.5]
    late = since_arrival(choice_of(1.005, 1.5, 60.0))
    assert late[:2] == [1.005, 1.5]
    assert late[2] == pytest.approx(10, abs=5)
    # The clock of the other host is ahead: the request seems to arrive later than now.
    choice = choice_of(1.005, 1.5, ago_s=-60.0)
    assert max(at_s for at_s, _ in choice.earlier) <= time.monotonic()


def test_without_a_token_it_stopped_somewhere_behind_its_admission():
    choice = choice_of()
    assert choice.times.stopped_s - choice.times.began_s == pytest.approx(0.125)
    assert (choice.earlier, choice.times.route) == ((), None)
