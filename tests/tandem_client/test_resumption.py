"""Resumable streams of the typed client, over two routers whose calls break anywhere."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial

import pytest

from cluster.api import Started, Summary, Tokens
from cluster.api.event_streams import closing
from tandem_client import Client, errors, resumption
from tests.cluster.scripted_generator import raised
from tests.eventually import eventually
from tests.tandem_client.routers import two_routers

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
async def routers():
    async with two_routers() as found:
        yield found


@pytest.fixture
async def client(routers):
    async with Client(routers.addresses, timeout_s=60.0, resume_window_s=5.0) as opened:
        yield opened


async def all_of(events):
    return [event async for event in events]


def unnamed(events):
    return [replace(one, stream_id="") if isinstance(one, Started) else one for one in events]


@pytest.mark.parametrize("way", ["cut", "stop"])
@pytest.mark.parametrize("choices", [1, 3])
async def test_every_event_comes_once_wherever_a_router_ends(choices, way):
    options = {"n": choices, "logprobs": 2, "max_tokens": 3, "timeout_s": 20.0}
    whole, resumed = None, 0
    for place in range(3 * choices + 3):
        async with two_routers() as routers, Client(routers.addresses) as client:
            if whole is None:
                whole = await all_of(client.generate("a b", **options))
                assert len(whole) == 3 * choices + 2
            breaking = routers.generators[0]
            breaking.after_events, breaking.times = place, 1
            breaking.breaks = routers.proxies[0].cut if way == "cut" else partial(routers.stop, 0)
            got = await all_of(client.generate("a b", resumable=True, **options))
            assert unnamed(got) == whole, place
            assert not breaking.times
            resumed += len(breaking.journal.resumed)
    assert resumed >= 2 * choices  # where the client had the beginning before the break


@pytest.mark.parametrize("every", [2, 3, 5])
async def test_every_event_comes_once_however_often_both_break(routers, client, every):
    options = {"n": 3, "logprobs": 1, "max_tokens": 8, "timeout_s": 30.0}
    whole = await all_of(client.generate("a b", **options))
    for generator, proxy in zip(routers.generators, routers.proxies, strict=True):
        generator.after_events, generator.times, generator.breaks = every, 100, proxy.cut
    got = await all_of(client.generate("a b", resumable=True, **options))
    assert unnamed(got) == whole
    assert len(routers.generators[0].journal.resumed) >= 24 // every


async def test_a_whole_answer_of_a_resumable_request(routers, client):
    breaking = routers.generators[0]
    breaking.after_events, breaking.times, breaking.breaks = 3, 1, routers.proxies[0].cut
    done = await client.complete("a b", n=2, resumable=True)
    assert [choice.text for choice in done.choices] == ["one two three four"] * 2
    assert done.started.stream_id


async def test_a_silent_router_counts_as_broken(routers, client, monkeypatch):
    monkeypatch.setattr(resumption, "SILENCE_S", 0.3)
    routers.generators[0].after_events, routers.generators[0].times = 3, 1
    began_s = time.monotonic()
    got = await all_of(client.generate("a b", resumable=True))
    assert [one.index for one in got if isinstance(one, Tokens)] == [0, 1, 2, 3]
    assert 0.3 <= time.monotonic() - began_s < 20


async def test_a_router_that_does_not_answer_resume_is_left(routers, client, monkeypatch):
    monkeypatch.setattr(resumption, "ANSWER_S", 0.3)
    first, second = routers.generators
    first.after_events, first.times, first.breaks = 3, 1, routers.proxies[0].cut
    second.after_events, second.times = 0, 1
    got = await all_of(client.generate("a b", resumable=True))
    assert [one.index for one in got if isinstance(one, Tokens)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "resumed"), [(errors.ReplicaLost, 1), (errors.Internal, 0), (errors.Overloaded, 4)]
)
async def test_the_error_of_the_request_comes_behind_its_tokens(routers, client, kind, resumed):
    """An Overloaded may be that of one router, so the others are asked, too."""
    first = routers.generators[0]
    first.error, first.after = kind("what happened"), 3
    events, got = client.generate("a b", resumable=True), []
    with pytest.raises(kind, match="what happened"):
        async for event in events:
            got.append(event)  # noqa: PERF401
    assert [one.index for one in got if isinstance(one, Tokens)] == [0, 1]
    assert len(first.journal.resumed) == resumed


async def test_a_journal_that_is_away_for_a_moment_is_waited_for(routers, client):
    first, second = routers.generators
    first.after_events, first.times, first.breaks = 3, 1, routers.proxies[0].cut
    away = 2

    def flaky(resume):
        async def follow(request):
            nonlocal away
            async with closing(resume(request)) as events:
                async for event in events:
                    yield event
                    if away:
                        away -= 1
                        raise errors.Unavailable("Redis is away", retry_after_s=0.1)

        return follow

    first.resume, second.resume = flaky(first.resume), flaky(second.resume)
    assert (await client.complete("a b", resumable=True)).text == "one two three four"
    away = 100
    second.after_events, second.times, second.breaks = 3, 1, routers.proxies[1].cut
    first.times = 1
    error = await raised(client.complete("a b", resumable=True))
    assert error.message == "Redis is away"
    assert away > 90


async def test_a_refusal_before_the_start_is_not_tried_again(routers, client):
    first = routers.generators[0]
    first.error = errors.Overloaded("full", retry_after_s=30.0)
    error = await raised(client.complete("a", resumable=True))
    assert error.retry_after_s == 30.0
    assert not first.journal.resumed


async def test_a_stream_that_is_kept_no_more(routers, client):
    first = routers.generators[0]
    first.after_events, first.times = 3, 1

    def lose():
        first.journal.streams.clear()
        routers.proxies[0].cut()

    first.breaks = lose
    began_s = time.monotonic()
    assert type(await raised(client.complete("a", resumable=True))) is errors.NotFound
    assert time.monotonic() - began_s < 10


async def test_a_retry_time_is_waited_for(routers, client):
    first, second = routers.generators
    first.after_events, first.times, first.breaks = 3, 1, partial(routers.stop, 0)
    busy, resume = errors.Overloaded("full", retry_after_s=0.4), second.resume

    async def refuse(request):
        second.resume = resume
        await asyncio.sleep(0)
        raise busy
        yield

    second.resume = refuse
    began_s = time.monotonic()
    done = await client.complete("a", resumable=True)
    assert done.text == "one two three four"
    assert 0.4 <= time.monotonic() - began_s < 10


@pytest.mark.parametrize(("shift", "at"), [(1, "at token 3"), (-1, "at token 1")])
async def test_tokens_that_are_not_the_next_are_a_fault(routers, client, shift, at):
    first, second = routers.generators
    first.after_events, first.times, first.breaks = 3, 1, partial(routers.stop, 0)
    resume = second.resume

    async def wrong(request):
        async for event in resume(request):
            yield replace(event, index=event.index + shift) if isinstance(event, Tokens) else event

    second.resume = wrong
    with pytest.raises(errors.Internal, match=at):
        await client.complete("a", resumable=True)


async def test_a_break_lasts_for_the_window_at_most(routers):
    first = routers.generators[0]
    first.after_events, first.times = 3, 1

    def end():
        for number in range(2):
            routers.stop(number)

    first.breaks = end
    async with Client(routers.addresses, resume_window_s=0.5) as client:
        began_s = time.monotonic()
        assert type(await raised(client.complete("a", resumable=True))) is errors.Unavailable
        assert time.monotonic() - began_s < 10


async def test_the_deadline_holds_for_all_calls_together(routers):
    first, second = routers.generators
    first.endless, first.pause_s = True, 0.01
    first.after_events, first.times, first.breaks = 3, 1, routers.proxies[0].cut
    async with Client(routers.addresses) as client:
        began_s = time.monotonic()
        error = await raised(client.complete("a", resumable=True, timeout_s=2.0))
        assert type(error) is errors.DeadlineExceeded
        assert 2.0 <= time.monotonic() - began_s < 20
    assert len(first.journal.resumed) == 1
    assert not await second.cancel_stream("stream-0", "default"), "the client has ended it"


async def test_closing_leaves_it_and_anybody_of_the_tenant_ends_it(routers, client):
    first = routers.generators[0]
    first.endless, first.pause_s = True, 0.01
    events = client.generate("a", resumable=True)
    stream_id = (await anext(events)).stream_id
    await events.aclose()
    stream = first.journal.streams[stream_id]
    await eventually(lambda: not first.journal.followers and len(stream.entries) > 2)
    rest = client.resume(stream_id, [2])
    assert (await anext(rest)).stream_id == stream_id
    assert (await anext(rest)).index == 2
    async with Client(routers.addresses[1]) as other:
        assert await other.cancel(stream_id=stream_id)
        assert not await other.cancel(stream_id=stream_id)
    with pytest.raises(errors.Cancelled):
        await all_of(rest)


@pytest.mark.parametrize("way", ["cancelled", "late"])
async def test_a_caller_that_gives_up_a_whole_answer_ends_its_stream(routers, client, way):
    first = routers.generators[0]
    first.endless, first.pause_s = True, 0.01
    timeout_s = 3.0 if way == "late" else None
    asking = asyncio.create_task(client.complete("a", resumable=True, timeout_s=timeout_s))
    await eventually(lambda: first.journal.streams)
    (stream,) = first.journal.streams.values()
    await eventually(lambda: len(stream.entries) > 2)
    assert not stream.ended
    if way == "cancelled":
        asking.cancel()
    with pytest.raises((asyncio.CancelledError, errors.DeadlineExceeded)):
        await asking
    assert stream.ended


async def test_resuming_goes_on_by_itself_too(routers, client):
    done = await client.complete("a", resumable=True)
    first = routers.generators[0]
    first.after_events, first.times, first.breaks = 2, 1, routers.proxies[0].cut
    got = await all_of(client.resume(done.started.stream_id))
    assert [one.index for one in got if isinstance(one, Tokens)] == [0, 1, 2, 3]
    assert [type(got[0]), type(got[-1])] == [Started, Summary]
    for stream_id, have in (("a/b", ()), ("", ()), ("a", [-1])):
        assert type(await raised(anext(client.resume(stream_id, have)))) is errors.InvalidRequest


async def test_the_next_router_gets_what_no_router_took(routers, client):
    await routers.servers[0].stop(0)
    await routers.proxies[0].close()
    assert (await client.complete("a b")).text == "one two three four"
    async with Client(routers.addresses) as fresh:
        assert (await fresh.model()).name == "demo"


async def test_all_routers_are_asked_to_cancel(routers, client):
    second = routers.generators[1]
    second.endless, second.pause_s = True, 0.01
    async with Client(routers.addresses[1]) as other:
        task = asyncio.create_task(other.complete("a", request_id="r1"))
        await eventually(lambda: second.started == ["r1"])
        assert await client.cancel("r1")
        assert type(await raised(task)) is errors.Cancelled
    assert not await client.cancel("r1")


def test_a_client_needs_an_address():
    with pytest.raises(errors.ConfigError):
        Client([])
