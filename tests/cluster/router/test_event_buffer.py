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


# For each event that comes: of which choice, how many tokens, and how many are read after it.
steps = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 3)), max_size=40)


@given(steps, st.booleans())
@settings(deadline=None)
def test_whatever_the_reader_does_nothing_is_lost_and_all_is_in_order(script, logprobs):
    async def play():
        outbox, had = EventBuffer(), []
        outbox.put(STARTED)
        sent = [0, 0, 0]
        for choice, count, reads in script:
            outbox.put(tokens(choice, sent[choice], count, logprobs=logprobs))
            sent[choice] += count
            had += [await outbox.get() for _ in range(min(reads, outbox.unread))]
            assert outbox.unread <= 1 + len(sent)
        outbox.put(SUMMARY)
        while outbox.unread:
            had.append(await outbox.get())
        outbox.close()
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
    outbox = EventBuffer()
    for index in range(3):
        event = tokens(0, index, 1, last=index == 2)
        outbox.put(event)
        assert await outbox.get() is event
    outbox.close()


async def test_a_reader_that_waits_is_woken():
    outbox = EventBuffer()
    reading = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    outbox.put(STARTED)
    assert await reading == STARTED
    outbox.close()


async def test_an_end_takes_the_place_of_what_was_not_read():
    outbox = EventBuffer()
    outbox.put(STARTED)
    outbox.put(tokens(0, 0, 1))
    error = Cancelled("over")
    outbox.end_with(error)
    outbox.put(tokens(0, 1, 1))
    assert await outbox.get() is error
    assert not outbox.unread


async def test_silence_is_filled_with_heartbeats_that_do_not_pile_up():
    outbox = EventBuffer(heartbeat_s=0.005)
    assert await outbox.get() == Heartbeat()
    assert await outbox.get() == Heartbeat()
    await asyncio.sleep(0.03)
    assert outbox.unread == 1
    outbox.put(tokens(0, 0, 1))
    assert await outbox.get() == Heartbeat()
    assert await outbox.get() == tokens(0, 0, 1)
    outbox.close()
    await asyncio.sleep(0.02)
    assert not outbox.unread


@given(steps, st.booleans())
@settings(deadline=None)
def test_text_that_is_kept_leaves_before_the_summary_a_choice_in_one(script, logprobs):
    async def play():
        outbox, sent = EventBuffer(), [0, 0, 0]
        outbox.keep_text()
        outbox.put(STARTED)
        assert await outbox.get() == STARTED
        for choice, count, _ in script:
            outbox.put(tokens(choice, sent[choice], count, logprobs=logprobs))
            outbox.put(Progress(choice, "decode", sent[choice] + count, 9))
            sent[choice] += count
            assert outbox.unread <= len(sent)
        told = [await outbox.get() for _ in range(outbox.unread)]
        outbox.put(SUMMARY)
        return told, [await outbox.get() for _ in range(outbox.unread)], sent

    told, had, sent = asyncio.run(play())
    assert all(event == Progress(event.choice, "decode", sent[event.choice], 9) for event in told)
    assert had[-1] == SUMMARY
    assert {event.choice: event for event in had[:-1]} == {
        choice: tokens(choice, 0, count, logprobs=logprobs)
        for choice, count in enumerate(sent)
        if count
    }


async def test_a_failure_takes_the_place_of_text_that_was_kept():
    outbox, error = EventBuffer(), Cancelled("over")
    outbox.keep_text()
    outbox.put(tokens(0, 0, 1))
    outbox.put(error)
    assert await outbox.get() is error
    assert not outbox.unread
    outbox.close()


async def test_text_that_is_kept_is_silence_to_be_filled():
    outbox = EventBuffer(heartbeat_s=0.02)
    outbox.keep_text()
    for index in range(10):
        outbox.put(tokens(0, index, 1))
        await asyncio.sleep(0.005)
    assert await outbox.get() == Heartbeat()
    outbox.close()


async def test_what_is_no_chunk_over_http_is_silence_to_be_filled():
    outbox, had = EventBuffer(heartbeat_s=0.05), []
    outbox.put(STARTED)
    async with asyncio.timeout(10):
        while Heartbeat() not in had:
            outbox.put(Tokens(0, len(had), (1,), ""))
            while outbox.unread:
                had.append(await outbox.get())
            await asyncio.sleep(0.005)
    assert had[0] == STARTED
    outbox.close()
