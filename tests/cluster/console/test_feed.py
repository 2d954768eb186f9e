"""The feed: made once for all, only while somebody looks, and no page can hold it up."""

from __future__ import annotations

import asyncio
import json

import pytest

from cluster.console.feed import MOST_VIEWERS, ConsoleFeed
from cluster.console.model import ConsoleModel
from engine.errors import Overloaded, Unauthenticated, Unavailable
from tests.cluster.console.scripted_source import ScriptedSource
from tests.eventually import eventually

TICK_S = 0.01
SLOW = "this page was too slow; it gets the whole state again"


def anybody():
    """Let everybody look."""


@pytest.fixture
def source():
    return ScriptedSource()


@pytest.fixture
async def feed(source):
    feed = ConsoleFeed(ConsoleModel(source), TICK_S)
    yield feed
    await feed.close()


def parsed(event):
    name, data, *_ = event.decode().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_a_page_gets_all_and_then_changes(feed, source):
    events = feed.watch(anybody)
    name, whole = parsed(await anext(events))
    assert (name, whole["router"], "replicas" in whole) == ("whole", "router-0", True)
    source.sections["replicas"] = {"prefill-0": {"waiting": 3}}
    changed = {}
    while "replicas" not in changed:
        name, changed = parsed(await anext(events))
        assert name == "changes"
    assert changed["replicas"] == {"prefill-0": {"waiting": 3}}
    await events.aclose()


async def test_nothing_is_made_while_nobody_looks(feed, source):
    assert source.asked == 0
    events = feed.watch(anybody)
    await anext(events)
    await events.aclose()
    await eventually(lambda: feed.viewers == 0)
    await eventually(lambda: not [t for t in asyncio.all_tasks() if "console" in t.get_name()])
    asked = source.asked
    again = feed.watch(anybody)
    assert parsed(await anext(again))[0] == "whole"
    assert source.asked == asked + 2  # for what came before, and for the first event
    await again.aclose()


async def test_one_event_is_made_for_all(feed, source):
    pages = [feed.watch(anybody) for _ in range(3)]
    await asyncio.gather(*(anext(page) for page in pages))
    asked = source.asked
    assert len({await anext(page) for page in pages}) <= 2
    assert source.asked <= asked + 4
    for page in pages:
        await page.aclose()


async def test_pages_are_bounded(feed):
    pages = [feed.watch(anybody) for _ in range(MOST_VIEWERS)]
    await asyncio.gather(*(anext(page) for page in pages))
    with pytest.raises(Overloaded, match="16 pages"):
        await anext(feed.watch(anybody))
    await pages.pop().aclose()
    await anext(more := feed.watch(anybody))
    for page in (more, *pages):
        await page.aclose()


async def test_a_slow_page_is_dropped_with_a_reason(feed):
    slow, other = feed.watch(anybody), feed.watch(anybody)
    await asyncio.gather(anext(slow), anext(other))
    for _ in range(20):
        await anext(other)
    assert feed.viewers == 1
    rest = [parsed(event) async for event in slow]
    assert rest[-1] == (
        "ended",
        {"reason": SLOW},
    )
    assert len(rest) == 1
    await other.aclose()


async def test_a_page_whose_key_was_removed_is_dropped(feed):
    known = [True]

    def allowed():
        if not known:
            raise Unauthenticated("this API key is not known")

    events = feed.watch(allowed)
    await anext(events)
    known.clear()
    rest = [parsed(event) async for event in events]
    assert rest[-1] == ("ended", {"reason": "this API key is not known"})


async def test_an_outage_of_the_directory_stops_nothing(feed, source):
    source.down = True
    events = feed.watch(anybody)
    assert parsed(await anext(events))[1]["cluster"] == {}
    await events.aclose()


async def test_a_fault_is_told(feed, source, caplog):
    source.sections = None
    rest = [parsed(event) async for event in feed.watch(anybody)]
    assert "fault" in rest[-1][1]["reason"]
    assert "ended in a fault" in caplog.text


async def test_the_end_of_the_router_ends_the_pages(feed):
    events = feed.watch(anybody)
    await anext(events)
    await feed.close()
    rest = [parsed(event) async for event in events]
    assert rest[-1] == ("ended", {"reason": "the router ends"})
    with pytest.raises(Unavailable):
        await anext(feed.watch(anybody))
