"""What a client is given of events that came faster than it reads, or not at all."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api import Heartbeat, Progress, Started, Summary, Tokens
from cluster.router.event_buffer import EventBuffer
from engine.errors import Cancelled
from engine.types.sequence import SampledToken

STARTED = Started("r", "demo", 3, 7)
SUMMARY = Summary(3, 4, (), 1.0)


def tokens(choice, index, count, *, last=False, logprobs=False):
    ids = tuple(range(index, index + count))
    text = "".join(f" {one}" for one in ids)
    sampled = tuple(SampledToken(one, -0.5) for one in ids) if logprobs else ()
    return Tokens(choice, index, ids, text, "length" if last else None, sampled)


async def heartbeats(clock, count):
    """Let time pass by so many heartbeats of another buffer."""
    for _ in range(count):
        assert await clock.get() == Heartbeat()


# For each event that comes: of which choice, how many tokens, and how many are read after it.
steps = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 3)), max_size=40)


@given(steps, st.booleans())
@settings(deadline=None)
def test_whatever_the_reader_does_nothing_is_lost_and_all_is_in_order(script, logprobs):
    async def play():
        buffer, had = EventBuffer(), []
        buffer.put(STARTED)
        sent = [0, 0, 0]
        for choice, count, reads in script:
            buffer.put(tokens(choice, sent[choice], count, logprobs=logprobs))
            sent[choice] += count
            had += [await buffer.get() for _ in range(min(reads, buffer.unread))]
            assert buffer.unread <= 1 + len(sent)
        buffer.put(SUMMARY)
        while buffer.unread:
            had.append(await buffer.get())
        buffer.close()
        return had, sent

    had, sent = asyncio.run(play())
    assert had[0] == STARTED
    assert had[-1] == SUMMARY
    for choice in range(3):
        due = 0
        for event in had[1:-1]:
            if event.choice == choice:
                assert event == tokens(choice, due, len(event.ids), logprobs=logprobs)
                due += len(event.ids)
        assert due == sent[choice]


async def test_a_reader_that_keeps_up_gets_each_event_as_it_came():
    buffer = EventBuffer()
    for index in range(3):
        event = tokens(0, index, 1, last=index == 2)
        buffer.put(event)
        assert await buffer.get() is event
    buffer.close()


async def test_a_reader_that_waits_is_woken():
    buffer = EventBuffer()
    reading = asyncio.create_task(buffer.get())
    await asyncio.sleep(0)
    buffer.put(STARTED)
    assert await reading == STARTED
    buffer.close()


async def test_an_end_replaces_unread_events():
    buffer = EventBuffer()
    buffer.put(STARTED)
    buffer.put(tokens(0, 0, 1))
    error = Cancelled("over")
    buffer.end_with(error)
    buffer.put(tokens(0, 1, 1))
    assert await buffer.get() is error
    assert not buffer.unread


async def test_the_first_end_counts_and_stays_to_be_read():
    """A client that asks two routers to cancel may end its request twice before it reads."""
    buffer, first = EventBuffer(), Cancelled("first")
    buffer.put(tokens(0, 0, 1))
    buffer.end_with(first)
    buffer.end_with(Cancelled("second"))
    assert await asyncio.wait_for(buffer.get(), 10) is first
    assert not buffer.unread


ENDS = (SUMMARY, Cancelled("put"), Cancelled("replaces"))
acts = st.lists(st.sampled_from(["tokens", "progress", "get", "close", *ENDS]), max_size=30)


@given(acts, st.booleans(), st.booleans())
@settings(deadline=None)
def test_the_first_end_before_the_close_is_read_whatever_comes_beside_it(script, at_end, waits):
    """By any interleaving, also where a reader waits from the beginning."""

    async def play():
        buffer, had, index, first, closed = EventBuffer(), [], 0, None, False
        if at_end:
            buffer.keep_text()

        async def read():
            while not had or not isinstance(had[-1], Summary | Cancelled):
                had.append(await buffer.get())

        reading = asyncio.create_task(read()) if waits else None
        for act in script:
            if act == "tokens":
                buffer.put(tokens(0, index, 1))
                index += not buffer.closed
            elif act == "progress":
                buffer.put(Progress(0, "decode", index, 9))
            elif act == "get":
                await asyncio.sleep(0)
                if reading is None and buffer.unread:
                    had.append(await buffer.get())
            elif act == "close":
                buffer.close()
                closed = True
            else:
                first = first or (None if closed else act)
                (buffer.end_with if act is ENDS[2] else buffer.put)(act)
            assert buffer.closed == (closed or first is not None)
        if first is not None:
            await asyncio.wait_for(reading or read(), 10)
        buffer.close()
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return had, first, buffer.unread

    had, first, unread = asyncio.run(play())
    assert [one for one in had if isinstance(one, Summary | Cancelled)] == [first] * bool(first)
    assert not (first and unread)


async def test_silence_is_filled_with_heartbeats_that_do_not_pile_up():
    buffer = EventBuffer(heartbeat_s=0.005)
    assert await buffer.get() == Heartbeat()
    assert await buffer.get() == Heartbeat()
    clock = EventBuffer(heartbeat_s=0.005)
    await heartbeats(clock, 4)
    assert buffer.unread == 1
    buffer.put(tokens(0, 0, 1))
    assert await buffer.get() == Heartbeat()
    assert await buffer.get() == tokens(0, 0, 1)
    buffer.close()
    await heartbeats(clock, 4)
    assert not buffer.unread
    clock.close()


@given(steps, st.booleans())
@settings(deadline=None)
def test_text_that_is_kept_leaves_before_the_summary_a_choice_in_one(script, logprobs):
    async def play():
        buffer, sent = EventBuffer(), [0, 0, 0]
        buffer.keep_text()
        buffer.put(STARTED)
        assert await buffer.get() == STARTED
        for choice, count, _ in script:
            buffer.put(tokens(choice, sent[choice], count, logprobs=logprobs))
            buffer.put(Progress(choice, "decode", sent[choice] + count, 9))
            sent[choice] += count
            assert buffer.unread <= len(sent)
        told = [await buffer.get() for _ in range(buffer.unread)]
        buffer.put(SUMMARY)
        return told, [await buffer.get() for _ in range(buffer.unread)], sent

    told, had, sent = asyncio.run(play())
    assert all(event == Progress(event.choice, "decode", sent[event.choice], 9) for event in told)
    assert had[-1] == SUMMARY
    assert {event.choice: event for event in had[:-1]} == {
        choice: tokens(choice, 0, count, logprobs=logprobs)
        for choice, count in enumerate(sent)
        if count
    }


async def test_a_failure_replaces_text_that_was_kept():
    buffer, error = EventBuffer(), Cancelled("over")
    buffer.keep_text()
    buffer.put(tokens(0, 0, 1))
    buffer.put(error)
    assert await buffer.get() is error
    assert not buffer.unread
    buffer.close()


async def test_text_that_is_kept_is_silence_to_be_filled():
    buffer, clock = EventBuffer(heartbeat_s=0.02), EventBuffer(heartbeat_s=0.005)
    buffer.keep_text()
    for index in range(10):
        buffer.put(tokens(0, index, 1))
        await heartbeats(clock, 1)
    clock.close()
    assert await buffer.get() == Heartbeat()
    buffer.close()


async def test_what_is_no_chunk_over_http_is_silence_to_be_filled():
    buffer, clock, had = EventBuffer(heartbeat_s=0.05), EventBuffer(heartbeat_s=0.005), []
    buffer.put(STARTED)
    async with asyncio.timeout(10):
        while Heartbeat() not in had:
            buffer.put(Tokens(0, len(had), (1,), ""))
            while buffer.unread:
                had.append(await buffer.get())
            await heartbeats(clock, 1)
    clock.close()
    assert had[0] == STARTED
    buffer.close()
