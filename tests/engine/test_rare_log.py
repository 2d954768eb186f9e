"""A warning that strangers can cause fills no log, and counts what it leaves out."""

from __future__ import annotations

import asyncio
import logging

import pytest

from engine.rare_log import RareLog
from tests.eventually import eventually

LOG = logging.getLogger("engine.rare")


@pytest.fixture(autouse=True)
def at_warnings(caplog):
    caplog.set_level(logging.WARNING)


def test_there_is_one_line_in_a_time_with_the_count_since_the_last(caplog):
    now = [0.0]
    rare = RareLog(LOG, "something", 10.0, lambda: now[0])
    for events in (2, 3, 0):
        rare.note(events=events)
    now[0] = 10.0
    rare.note({"reason": "why"})
    now[0] = 20.0
    rare.note(events=0)
    assert [record.count for record in caplog.records] == [2, 4]
    assert caplog.records[1].reason == "why"


def test_what_is_left_is_logged_with_a_note_of_nothing_or_at_the_end(caplog):
    now = [0.0]
    rare = RareLog(LOG, "something", 10.0, lambda: now[0])
    for _ in range(3):
        rare.note({"reason": "why"})
    now[0] = 10.0
    rare.note(events=0)
    rare.note(events=7)
    for _ in range(2):
        rare.close()
    assert [record.count for record in caplog.records] == [1, 2, 7]
    assert caplog.records[1].reason == "why"


async def test_many_events_are_two_lines_without_a_further_event(caplog):
    rare = RareLog(LOG, "something", 0.05)
    for _ in range(1000):
        rare.note({"peer": "192.0.2.1:7"}, kind="timeout")
    rare.note({"peer": ""}, kind="url")
    await eventually(lambda: len(caplog.records) == 2)
    first, second = caplog.records
    assert (first.timeout, second.timeout, second.url) == (1, 999, 1)
    assert (first.peer, second.peer) == ("192.0.2.1:7", "")
    await asyncio.sleep(0.1)
    assert len(caplog.records) == 2


def test_a_loop_that_ended_before_its_timer_silences_no_later_event(caplog):
    now = [0.0]
    rare = RareLog(LOG, "something", 10.0, lambda: now[0])

    async def twice():
        rare.note()
        rare.note()

    asyncio.run(twice())
    now[0] = 10.0
    rare.note()
    assert [record.count for record in caplog.records] == [1, 2]
