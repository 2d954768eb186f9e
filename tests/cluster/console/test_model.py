"""The state behind the feed: what happened counts once, and only changes are sent."""

from __future__ import annotations

import asyncio
import threading
import time
from array import array

from cluster.console.model import ConsoleModel
from cluster.console.peer_news import PeerNews, PeersTold
from cluster.console.source import RunningView
from cluster.telemetry.requests import row_clock as clock_of_rows
from cluster.telemetry.requests.row_clock import row_clock
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
    assert changes["served"] == {"acme": {"tokens": 10, "requests": 1, "refused": 0}}
    source.rows.add(row("r2", NOW - 2, one))
    assert first_tokens(model.changes()) == 2


async def test_a_step_of_the_wall_clock_empties_no_chart(monkeypatch):
    source = ScriptedSource()
    monkeypatch.setattr(clock_of_rows, "EPOCH_S", clock_of_rows.EPOCH_S - 3600)
    model = ConsoleModel(source)
    source.rows.add(row("late", row_clock() - 20, choice()))
    await model.catch_up()
    source.rows.add(row("r", row_clock() - 2, choice()))
    assert first_tokens(model.changes()) == 2
    assert abs(model.whole()["now"] - row_clock()) < 60


def test_names_of_requests_that_fail_take_no_place_from_endpoints():
    source = ScriptedSource()
    model = model_of(source)
    for number in range(40):
        failed = row(f"r{number}", NOW - 2, endpoint=f"guess {number}", outcome="NotFound")
        source.rows.add(failed)
    source.rows.add(row("good", NOW - 2, choice()))
    (step,) = model.changes()["series"].values()
    assert {name: point["ended"] for name, point in step.items()} == {"other": 40, "chat": 1}


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
        if len(source.rows) < 4000:  # far fewer than a store holds
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
    whole = model.whole()
    assert [one["request_id"] for one in whole["rows"]] == ["old", "new"]
    assert whole["words"]["stages"]["decode_admission"] == "decode admission"
    assert whole["words"]["reasons"]["kv_blocks"] == "KV blocks are short"


async def test_it_tells_since_when_it_has_counted_every_request():
    source = ScriptedSource()
    source.rows = RequestStore(2, since=NOW - 600)
    model = model_of(source)
    await model.catch_up()
    assert model.changes()["since"] == NOW - 600
    for name in "abc":
        source.rows.add(row(name, NOW - 60))
    await model.catch_up()
    assert model.changes()["since"] == NOW - 59, "the first row was gone before it was counted"
    source.told = PeersTold((("router-1", PeerNews(0, 0, observed_s=300.0)),))
    assert model.changes()["since"] == NOW - 300, "another router has seen more"


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
    assert changes["served"] == {"acme": {"tokens": 0, "requests": 100, "refused": 100}}
    assert len(changes["rows"]) == 40
    assert changes["skipped"] == 60


def test_tenants_beyond_the_busiest_are_counted_together():
    source = ScriptedSource()
    for number in range(70):
        source.rows.add(row(f"r{number}", NOW - number, tenant=f"t{number}", prompt_tokens=number))
    served = model_of(source).changes()["served"]
    *names, rest = served
    assert names[:2] == ["t69", "t68"] and len(names) == 64
    assert (rest, served[rest]["requests"]) == ("other", 6)
    assert sum(one["tokens"] for one in served.values()) == sum(range(70))


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


def running(came_s, name="r", age_s=100, **more):
    times = [time.monotonic() - ago_s for ago_s in came_s]
    known = {"ttft_s": 0.1, "token_times": (array("d", times),)} | more
    return RunningView(name, "acme", "chat", "interactive", NOW - age_s, **known)


def longest_itl(document):
    return max((point["itl"][2] for point in points(document) if point["itl"][2]), default=None)


def test_a_stream_that_stalls_shows_before_it_ends():
    source = ScriptedSource()
    fine = [running([0.5 - 0.02 * n for n in range(25)], f"r{n}", n) for n in range(80)]
    source.views = [*fine, running([13.0, 12.5, 12.0], "stalled", 900)]
    model = model_of(source)
    changes = model.changes()
    assert 12 <= longest_itl(changes) < 13
    assert min(point["itl"][1] for point in points(changes)) < 0.1
    assert changes["running"]["stalled"] == 1
    row = changes["running"]["rows"][0]
    assert row["request_id"] == "stalled"
    assert 12 <= row["stall_s"] == row["longest_stall_s"] < 13
    source.views[-1].token_times[0].append(time.monotonic())
    row = next(r for r in model.changes()["running"]["rows"] if r["request_id"] == "r0")
    assert (row["stall_s"], row["longest_stall_s"]) == (0.0, 0.02)
    source.views = source.views[-1:]
    row = model.changes()["running"]["rows"][0]
    assert row["stall_s"] == 0.0
    assert row["longest_stall_s"] >= 12


async def test_a_stall_that_is_over_shows_at_its_time_once_somebody_looks():
    source = ScriptedSource()
    source.views = [running([405.0, *(305 - 0.1 * n for n in range(3049))])]
    model = model_of(source)
    await model.catch_up()
    model.changes()
    stalls = {int(at): steps["chat"]["itl"][2] for at, steps in model.whole()["series"].items()}
    assert round(stalls[int(NOW - 305) // 10 * 10]) == 100


def test_the_end_of_a_request_counts_what_was_not_read_while_it_ran():
    source = ScriptedSource()
    model = model_of(source)
    unseen = choice(itl_p50_s=0.02, itl_p95_s=0.03, longest_stall_s=0.5)
    source.rows.add(row("unseen", NOW - 3, unseen))
    assert points(model.changes())[0]["itl"] == [0.03, 0.03, 0.5]
    source.views = [running([0.06, 0.04, 0.02])]
    values = points(model.changes())[0]["itl"]
    source.views = []
    source.rows.add(row("r", NOW - 3, choice(itl_p95_s=0.01, longest_stall_s=0.01)))
    assert points(model.changes())[0]["itl"] == values
    source.rows.add(row("r", NOW - 3, choice(itl_p95_s=0.02, longest_stall_s=2.0)))
    assert points(model.changes())[0]["itl"][2] == 2.0
