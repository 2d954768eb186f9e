"""What a replica sends to a router, in which order, and when."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.rpc import send_queue
from cluster.rpc.send_queue import SendQueue
from protos.calls_pb2 import CallEvent
from protos.decode_pb2 import Admitted, Retired
from protos.prefill_pb2 import HandedOver
from tandem_client.protos.inference_pb2 import Tokens

LATER = 3600.0


class Source:
    """Tokens of one call, numbered, given out when they are collected."""

    def __init__(self, queue):
        self.queue = queue
        self.made = 0
        self.given = 0

    def make(self, count=1, due_s=0.0):
        self.made += count
        self.queue.ready(self.collect, due_s)

    def collect(self):
        if self.given == self.made:
            return None
        index, self.given = self.given, self.made
        return CallEvent(tokens=Tokens(index=index, ids=range(index, self.made)))


def handed_over(number=0):
    return CallEvent(handed_over=HandedOver(bytes=number))


# What happens to one of three calls: tokens made, delayed or not, a single event, or a message.
moves = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["make", "delay", "put", "send"])), max_size=50
)


@given(moves)
@settings(deadline=None)
def test_each_call_is_in_order_and_nothing_is_lost(script):
    async def play():
        queue, sent, expected = SendQueue(), [], [[], [], []]
        sources = [Source(queue.queue(call)) for call in range(3)]
        for call, move in script:
            source = sources[call]
            if move == "put":
                expected[call].append("event")
                source.queue.put(handed_over())
            elif move == "send":
                if queue.due:
                    sent += await queue.next()
            else:
                expected[call].append(source.made)
                source.make(1, time.monotonic() + LATER if move == "delay" else 0.0)
        for source in sources:
            source.queue.put(handed_over(1))
        while queue.due:
            sent += await queue.next()
        return sent, expected

    sent, expected = asyncio.run(play())
    for call in range(3):
        got = []
        for event in sent:
            if event.call == call:
                got += list(event.tokens.ids) if event.HasField("tokens") else ["event"]
        assert got == [*expected[call], "event"]


async def test_tokens_of_a_step_leave_in_one_message():
    queue = SendQueue()
    for call in range(5):
        Source(queue.queue(call)).make()
    assert [event.call for event in await queue.next()] == list(range(5))
    assert queue.empty


async def test_single_events_leave_before_the_tokens_of_others():
    queue = SendQueue()
    Source(queue.queue(1)).make()
    queue.queue(2).put(handed_over())
    assert [event.call for event in await queue.next()] == [2, 1]


async def test_tokens_leave_before_what_is_put_after_them():
    queue = SendQueue()
    source = Source(queue.queue(1))
    source.queue.put(CallEvent(admitted=Admitted()))
    source.make(due_s=time.monotonic() + LATER)
    source.queue.put(CallEvent(retired=Retired()))
    kinds = [event.WhichOneof("event") for event in await queue.next()]
    assert kinds == ["admitted", "tokens", "retired"]


async def test_delayed_tokens_leave_when_they_are_due():
    queue = SendQueue()
    source = Source(queue.queue(1))
    due_s = time.monotonic() + 0.02
    source.make(2, due_s)
    (event,) = await asyncio.wait_for(queue.next(), 30)
    assert time.monotonic() >= due_s - 0.005  # what is due about then leaves together
    assert list(event.tokens.ids) == [0, 1]


async def test_what_became_urgent_does_not_take_the_next_tokens_along_early():
    queue = SendQueue()
    source = Source(queue.queue(1))
    source.make(1, time.monotonic() + 0.02)
    source.make(1)
    (event,) = await queue.next()
    assert list(event.tokens.ids) == [0, 1]
    source.make(1, time.monotonic() + LATER)
    await asyncio.sleep(0.04)
    assert not queue.due


async def test_what_was_not_taken_for_long_goes_in_messages_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(send_queue, "_MESSAGE_BYTES", 1000)
    queue = SendQueue()
    sources = [Source(queue.queue(call)) for call in range(10)]
    for source in sources:
        source.make(300)
    messages = []
    while queue.due:
        messages.append(await queue.next())
    assert [len(message) for message in messages] == [3, 3, 3, 1]
    assert [event.call for message in messages for event in message] == list(range(10))
