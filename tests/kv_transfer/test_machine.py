"""A hand-over against its state machine (docs/explanation/kv-transfer.md), step by step in any
order.

What is computed, offered, given and given up is chosen by hypothesis; the bytes, the answers and
what is left are compared with a model that knows only the rules.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.errors import TandemError
from kv_transfer.sender import OutgoingKv
from tests.kv_transfer.rig import (
    LAYOUT,
    end_links,
    eventually,
    linked,
    loop_turns,
    needs_nixl,
    over,
)

SIZE = LAYOUT.block_size
LAYERS = len(LAYOUT.layers)
SLOTS, BLOCKS = 4, 6
MARK = -7.0


@dataclass
class Transfer:
    """One hand-over in the model: slot i has the i-th range of blocks on both sides."""

    name: str
    slot: int
    value: float
    handing: object
    computed: list[int] = field(default_factory=lambda: [0] * LAYERS)
    complete: bool = False
    sending: asyncio.Task | None = None
    taking: asyncio.Task | None = None
    early: bool = False
    credit: asyncio.Event = field(default_factory=asyncio.Event)
    disturbed: bool = False

    @property
    def blocks(self):
        return list(range(self.slot * BLOCKS, (self.slot + 1) * BLOCKS))


class HandOverMachine(RuleBasedStateMachine):
    transport = "loopback"

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.context = linked(blocks=SLOTS * BLOCKS, **over(self.transport))
        self.pair = self.loop.run_until_complete(self.context.__aenter__())
        self.loop.run_until_complete(self.pair.move("warm", [0], [0]))
        self.live: dict[int, Transfer] = {}
        self.count = 0

    def do(self, call, *arguments):
        """A synchronous step, on the event loop."""

        async def now():
            return call(*arguments)

        return self.loop.run_until_complete(now())

    def choose(self, data, wanted):
        return data.draw(st.sampled_from([one for one in self.live.values() if wanted(one)]))

    def any(self, wanted):
        return any(wanted(one) for one in self.live.values())

    @precondition(lambda self: len(self.live) < SLOTS)
    @rule(expect=st.sampled_from(["early", "early", "late", "not yet"]))
    def begin(self, expect):
        self.count += 1
        slot = min(set(range(SLOTS)) - self.live.keys())
        blocks = range(slot * BLOCKS, (slot + 1) * BLOCKS)
        kv = OutgoingKv(f"t{self.count}", "d0", tuple(blocks), BLOCKS * SIZE, None)
        one = Transfer(kv.transfer, slot, float(self.count), self.do(self.pair.sender.begin, kv))
        fill(self.pair.source, one.blocks, MARK)
        fill(self.pair.target, one.blocks, MARK)
        self.live[slot] = one
        if expect != "not yet":
            self.start_taking(one, expect == "early")

    @precondition(lambda self: self.any(lambda one: one.taking is None))
    @rule(data=st.data(), early=st.booleans())
    def expect(self, data, early):
        self.start_taking(self.choose(data, lambda one: one.taking is None), early)

    def start_taking(self, one, early):
        one.early = early
        name = one.name

        async def admit(offered):
            if offered.first_token is None:
                return (one.blocks, 1) if one.early else None
            await one.credit.wait()
            return one.blocks, 1

        receiving = self.pair.receiver.receive(self.pair.peer, name, admit, 20.0)
        one.taking = self.loop.create_task(receiving)

    @precondition(lambda self: self.any(lambda one: not one.complete))
    @rule(
        data=st.data(),
        stop=st.integers(1, BLOCKS),
        layers=st.sampled_from([*range(1, LAYERS), LAYERS, LAYERS]),
        turns=st.integers(0, 20),
    )
    def compute(self, data, stop, layers, turns):
        one = self.choose(data, lambda one: not one.complete)
        for number in range(layers):
            start = one.computed[number]
            one.computed[number] = max(start, stop)
            self.pair.source.layers[number][:, one.blocks[start:stop]] = one.value
        self.do(one.handing.reached, stop * SIZE, layers)
        self.wait(turns)

    @precondition(lambda self: self.any(lambda one: not one.complete))
    @rule(data=st.data())
    def finish_prompt(self, data):
        one = self.choose(data, lambda one: not one.complete)
        fill(self.pair.source, one.blocks, one.value)
        one.complete = True
        self.do(one.handing.complete, one.slot)
        one.sending = self.loop.create_task(one.handing.committed(20.0))

    @precondition(lambda self: self.any(lambda one: not one.credit.is_set()))
    @rule(data=st.data())
    def give_credit(self, data):
        self.do(self.choose(data, lambda one: not one.credit.is_set()).credit.set)

    @precondition(lambda self: self.any(lambda one: one.taking is not None))
    @rule(data=st.data())
    def receiver_gives_up(self, data):
        one = self.choose(data, lambda one: one.taking is not None)
        one.disturbed = True
        self.do(one.taking.cancel)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def sender_gives_up(self, data):
        one = self.choose(data, lambda one: True)
        one.disturbed = True
        self.end(one)

    @precondition(lambda self: self.any(lambda one: one.taking is not None))
    @rule(dice=st.integers(1, 8))
    def link_breaks(self, dice):
        if dice < 8:
            return
        for one in self.live.values():
            one.disturbed = True
        ended = self.pair.receiver.counters.links_opened
        self.do(end_links, self.pair.sender)
        # A transfer that begins before the other end knows of it would be disturbed, too.
        links = lambda: self.pair.receiver.links_open  # noqa: E731
        opened = lambda: self.pair.receiver.counters.links_opened  # noqa: E731
        self.loop.run_until_complete(eventually(lambda: not links() or opened() > ended))

    @rule(turns=st.integers(1, 30))
    def time_passes(self, turns):
        self.wait(turns)

    def wait(self, turns):
        async def turn():
            for _ in range(turns):
                await asyncio.sleep(0.0005)

        self.loop.run_until_complete(turn())

    @precondition(lambda self: self.any(lambda one: one.complete and one.taking is not None))
    @rule(data=st.data())
    def let_it_end(self, data):
        """A hand-over without a disturbance is always committed."""
        one = self.choose(data, lambda one: one.complete and one.taking is not None)
        self.do(one.credit.set)
        # After a disturbance one side may wait for its lease; its caller ends that wait.
        when = asyncio.FIRST_COMPLETED if one.disturbed else asyncio.ALL_COMPLETED
        waiting = asyncio.wait({one.sending, one.taking}, timeout=15, return_when=when)
        done, _ = self.loop.run_until_complete(waiting)
        assert done, "neither side ends"
        if not one.disturbed:
            moved = BLOCKS * self.pair.source.block_bytes(0, LAYERS)
            assert one.taking.result().first_token == one.slot
            assert one.sending.result() == one.taking.result().bytes == moved
        self.end(one)

    def end(self, one):
        """End the transfer: nothing may read or write its blocks from here on."""
        del self.live[one.slot]
        self.loop.run_until_complete(self._end(one))

    async def _end(self, one):
        await one.handing.close("given up")
        fill(self.pair.source, one.blocks, MARK)
        tasks = [task for task in (one.sending, one.taking) if task is not None]
        if one.taking is not None and not one.taking.done():
            one.taking.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                assert isinstance(result, TandemError), result
        received = one.taking is not None and not isinstance(results[-1], BaseException)
        assert not received or has_bytes(self.pair.target, one.blocks, one.value), "a wrong byte"
        fill(self.pair.target, one.blocks, MARK)
        await loop_turns(20)
        assert has_bytes(self.pair.target, one.blocks, MARK), "a late write"

    @invariant()
    def nothing_is_in_blocks_that_nobody_took(self):
        for slot in range(SLOTS):
            one = self.live.get(slot)
            if one is not None and one.taking is not None:
                continue
            blocks = list(range(slot * BLOCKS, (slot + 1) * BLOCKS))
            assert one is None or has_bytes(self.pair.target, blocks, MARK)

    def teardown(self):
        for one in list(self.live.values()):
            self.end(one)
        self.loop.run_until_complete(eventually(self.pair.idle))
        assert self.pair.quarantined() == 0
        self.loop.run_until_complete(self.context.__aexit__(None, None, None))
        self.loop.close()


def fill(cache, blocks, value):
    for layer in cache.layers:
        layer[:, blocks] = value


def has_bytes(cache, blocks, value):
    return all((layer[:, blocks] == value).all() for layer in cache.layers)


class BorrowedMachine(HandOverMachine):
    """The same state machine where the receiver copies out of the sender's blocks."""

    transport = "borrowed"


class RemoteMachine(HandOverMachine):
    """The same state machine where the receiver reads the sender's blocks over UCX."""

    transport = "nixl"


TestHandOver = HandOverMachine.TestCase
TestBorrowed = BorrowedMachine.TestCase
TestRemote = RemoteMachine.TestCase
TestHandOver.settings = settings(max_examples=8, stateful_step_count=30, deadline=None)
TestBorrowed.settings = TestRemote.settings = TestHandOver.settings
# A machine that others load takes its time.
TestHandOver.pytestmark = TestBorrowed.pytestmark = [pytest.mark.timeout(400)]
TestRemote.pytestmark = [pytest.mark.timeout(400), needs_nixl]
