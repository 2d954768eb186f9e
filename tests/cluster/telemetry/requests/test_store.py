"""The rows in memory: their bounds, and the choice among them."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from cluster.telemetry.requests.row import ChoiceRow, RequestRow
from cluster.telemetry.requests.row_clock import row_clock
from cluster.telemetry.requests.store import RequestStore, RowFilter
from engine.errors import InvalidRequest


def row(name: str, ttft_s: float | None = None, **fields: object) -> RequestRow:
    choices = () if ttft_s is None else (ChoiceRow(0, "local", ttft_s=ttft_s),)
    given = {"endpoint": "chat", "config": "v", "outcome": "ok"} | fields
    return RequestRow(name, **given, choices=choices)  # type: ignore[arg-type]


def held(store: RequestStore) -> list[str]:
    return [one.request_id for one in store]


def test_the_oldest_rows_leave():
    store = RequestStore(2)
    numbers = [store.add(row(name)) for name in "abc"]
    assert held(store) == ["b", "c"]
    assert len(store) == 2
    assert store.get(numbers[0]) is None
    store.vacated(numbers[0], 1.0)
    store.vacated(numbers[1], 0.5)
    store.vacated(numbers[1], 0.25)
    assert [one.time_to_cancel_s for one in store] == [0.5, None]


def test_it_tells_since_when_no_row_is_missing():
    began = row_clock()
    assert began <= RequestStore().since <= row_clock()
    store = RequestStore(2, since=50.0)
    for name, received_at in (("a", 100.0), ("b", 90.0), ("c", 95.0)):
        store.add(row(name, received_at=received_at, total_s=7.0))
    assert store.since == 107.0
    store.add(row("d", received_at=130.0, total_s=7.0))
    assert store.since == 107.0, "what ended before was gone already"


def test_a_row_is_exchanged_as_long_as_it_is_held():
    store = RequestStore(1)
    gone, here = store.add(row("a")), store.add(row("b"))
    store.exchange(gone, row("c"))
    store.exchange(here, row("d"))
    assert held(store) == ["d"]


def test_the_id_of_a_client_finds_its_requests():
    rows = [replace(row("mine-0a1b"), x_request_id="mine"), row("mine-0"), row("other")]
    assert [one.request_id for one in RowFilter(request_id="mine").of(rows)] == ["mine-0a1b"]
    assert [one.request_id for one in RowFilter(request_id="mine-0").of(rows)] == ["mine-0"]


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_step_of_the_wall_clock_changes_no_list(monkeypatch, step_s):
    """A host that slept, or a late NTP: the rows of before and of behind have one clock."""
    rows = [row("old", received_at=row_clock() - 1800), row("new", received_at=row_clock() - 10)]
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall + step_s)
    assert [one.request_id for one in RowFilter(since_s=300.0).of(rows)] == ["new"]


def test_the_rows_behind_a_number():
    store = RequestStore(3)
    assert (store.last, store.after(0)) == (0, [])
    for name in "abcde":
        store.add(row(name))
    assert [one.request_id for one in store.after(3)] == ["d", "e"]
    assert [one.request_id for one in store.after(0)] == ["c", "d", "e"]
    assert (store.last, store.after(5)) == (5, [])


def test_all_requests_are_held_however_many_choices_they_have():
    """Beyond a bound the oldest keep those that say how long the request took."""
    times = [(0.1, 2.0), (0.2, 1.0), (0.9, 1.5), (0.3, 3.0), (0.4, 1.0), (0.5, 1.0)]
    choices = tuple(
        ChoiceRow(n, "local", ttft_s=first, ttlt_s=last) for n, (first, last) in enumerate(times)
    )
    store = RequestStore(4)
    for name in "abcd":
        store.add(RequestRow(name, "chat", "v", "ok", choices=choices))
    assert held(store) == ["a", "b", "c", "d"]
    assert [len(one.choices) for one in store] == [2, 2, 6, 6]
    assert [one.choice for one in next(iter(store)).choices] == [2, 3]
    assert {(one.ttft_s, one.ttlt_s) for one in store} == {(0.9, 3.0)}
    for name in "efgh":
        store.add(RequestRow(name, "chat", "v", "ok", choices=choices))
    assert held(store) == ["e", "f", "g", "h"]
    assert sum(len(one.choices) for one in store) <= 16


def test_ten_thousand_requests_of_eight_choices_are_held():
    store, choices = RequestStore(), tuple(ChoiceRow(n, "local") for n in range(8))
    for number in range(10_500):
        store.add(RequestRow(str(number), "chat", "v", "ok", choices=choices))
    assert len(store) == 10_000
    assert sum(len(one.choices) for one in store) <= 40_000


def test_the_slowest_choice_ranks_a_request():
    first = RequestRow("n", "chat", "v", "ok", choices=(CHOICE, replace(CHOICE, ttft_s=5.0)))
    found = RowFilter(slowest=True).of([first, row("one", 3.0)])
    assert [one.request_id for one in found] == ["n", "one"]


CHOICE = ChoiceRow(0, "local", ttft_s=0.1)


ROWS = (
    row("old", 0.2, received_at=10.0),
    row("slow", 3.0, received_at=900.0, tenant="acme"),
    row("refused", None, received_at=950.0, outcome="Refused", total_s=0.1, endpoint="report"),
    row("gone", None, received_at=960.0, outcome="cancelled", total_s=9.0),
)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({}, ["gone", "refused", "slow", "old"]),
        ({"limit": 2}, ["gone", "refused"]),
        ({"endpoint": "report"}, ["refused"]),
        ({"tenant": "acme"}, ["slow"]),
        ({"failed": True}, ["gone", "refused"]),
        ({"since_s": 100.0}, ["gone", "refused", "slow"]),
        ({"slowest": True}, ["gone", "slow", "old", "refused"]),
        ({"slowest": True, "answered": True}, ["slow", "old"]),
        ({"answered": True, "limit": 1}, ["slow"]),
        ({"request_id": "old"}, ["old"]),
        ({"tenant": "nobody"}, []),
    ],
)
def test_a_filter_chooses(wanted, names):
    assert [one.request_id for one in RowFilter(**wanted).of(ROWS, now=1000.0)] == names


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 1001},
        {"limit": -1},
        {"since_s": -1.0},
        {"since_s": math.nan},
        {"since_s": math.inf},
        {"request_id": "a b"},
        {"request_id": "x" * 129},
        {"request_id": f"chatcmpl-{'x' * 129}"},
        {"endpoint": "x" * 513},
        {"tenant": "\ud800"},
    ],
)
def test_a_filter_is_bounded(wrong):
    with pytest.raises(InvalidRequest) as refused:
        RowFilter(**wrong)
    assert refused.value.field in wrong


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("r", ["r"]),
        ("chatcmpl-r", ["r"]),
        ("msg_r", ["r"]),
        ("resp_r", ["r"]),
        ("cmpl-several", ["several-1", "several-0"]),
        ("several", ["several-1", "several-0"]),
        ("several-1", ["several-1"]),
        ("cmpl-own", ["cmpl-own"]),
        ("sever", []),
        ("other-r", []),
    ],
)
def test_a_request_is_found_by_its_answer_s_id_and_by_its_call_s(name, found):
    rows = [row(one) for one in ("r", "several-0", "several-1", "cmpl-own", "own")]
    assert [one.request_id for one in RowFilter(request_id=name).of(rows)] == found


def test_the_longest_id_of_a_client_is_found_by_its_answer_and_by_its_prompts():
    longest = "x" * 128
    rows = [row(f"{longest}-0"), row(f"{longest}-99")]
    for name, count in ((f"cmpl-{longest}", 2), (longest, 2), (f"{longest}-99", 1)):
        assert len(RowFilter(request_id=name).of(rows)) == count
