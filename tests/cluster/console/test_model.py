"""The state behind the feed: what happened counts once, and only changes are sent."""

from __future__ import annotations

import asyncio
import threading

from cluster.console.model import ConsoleModel
from cluster.console.source import RunningView
from cluster.telemetry.requests.store import RequestStore
from tests.cluster.console.scripted_source import NOW, ScriptedSource, choice, row


def model_of(source):
    return ConsoleModel(source, clock=lambda: NOW)


def points(document):
    return [point for step in document.get("series", {}).values() for point in step.values()]


def first_tokens(document):
    return sum(point["first_tokens"] for point in points(document))


def test_a_first_token_and_a_transfer_count_once_though_the_request_runs_and_ends():
    source = ScriptedSource()
    model, one = model_of(source), choice(transfer_bytes=3_000_000, transfer_end_s=0.2)
    moved = (("prefill-0", "decode-0", 3_000_000),)
    running = RunningView("r", "acme", "chat", "interactive", NOW - 2)
    source.views = [running]
    assert first_tokens(model.changes()) == 0
    source.views = [
        RunningView(
            *("r", "acme", "chat", "interactive", NOW - 2, 0.1),
            first_choice=lambda: one,
            moved=moved,
        )
    ]
    changes = model.changes()
    assert first_tokens(changes) == 1
    assert changes["links"][0]["bytes_per_s"] == 1_000_000
    source.views = []
    source.rows.add(row("r", NOW - 2, one))
    changes = model.changes()
    assert first_tokens(changes) == 1
    assert [point["ended"] for point in points(changes)] == [1]
    assert "links" not in changes
    assert changes["served"] == {"acme": 10}
    source.rows.add(row("r2", NOW - 2, one))
    assert first_tokens(model.changes()) == 2


async def test_rows_that_come_meanwhile_count_once_and_spoil_nothing():
    class Rows(RequestStore):
        def after(self, number):
            assert threading.current_thread() is threading.main_thread()
            return super().after(number)

    source = ScriptedSource()
    source.rows = Rows()
    for number in range(2000):
        source.rows.add(row(f"r{number}", NOW - 5, choice()))
    model = model_of(source)
    counting = asyncio.create_task(model.catch_up())
    while not counting.done():
        source.rows.add(row("late", NOW - 5, choice()))
        await asyncio.sleep(0)
    await counting
    model.changes()
    assert first_tokens(model.whole()) == len(source.rows)


async def test_what_came_while_nobody_looked_is_counted_without_a_link():
    source = ScriptedSource()
    source.rows.add(row("old", NOW - 2000, choice()))
    source.rows.add(row("new", NOW - 5, choice(transfer_bytes=5)))
    model = model_of(source)
    await model.catch_up()
    changes = model.changes()
    assert first_tokens(model.whole()) == 1
    assert changes["links"] == []
    assert [one["request_id"] for one in model.whole()["rows"]] == ["old", "new"]


def test_only_changes_are_sent_and_a_replica_that_left_is_named():
    source = ScriptedSource()
    model = model_of(source)
    assert "replicas" in model.changes()
    assert set(model.changes()) == {"now"}
    source.sections["replicas"] = {"prefill-1": {"waiting": 1}}
    assert model.changes()["replicas"] == {"prefill-1": {"waiting": 1}, "prefill-0": None}


def test_refusals_are_counted_by_reason_and_rows_are_bounded():
    source = ScriptedSource()
    for number in range(100):
        refused = row(f"r{number}", outcome="Refused", refused_for="ttft", total_s=0.01)
        source.rows.add(refused)
    changes = model_of(source).changes()
    assert [point["refused"] for point in points(changes)] == [{"ttft": 100}]
    assert len(changes["rows"]) == 40
    assert changes["skipped"] == 60


def test_the_requests_that_wait_longest_are_shown_first():
    source = ScriptedSource()
    source.views = [
        RunningView(f"r{age}", "acme", "chat", "interactive", NOW - age, 0.1 if age < 50 else None)
        for age in range(100)
    ]
    running = model_of(source).changes()["running"]
    assert (running["count"], running["waiting"], len(running["rows"])) == (100, 50, 60)
    assert running["rows"][0]["request_id"] == "r99"
    assert running["rows"][50]["request_id"] == "r0"


def test_texts_are_in_no_row():
    source = ScriptedSource()
    source.rows.add(row("r", NOW, choice(), prompt="my secret", answer="its answer"))
    assert "secret" not in str(model_of(source).changes())
