"""KV that leaves while the rest of the prompt is computed: exact, and no worse when it goes wrong.

A source block holds what it should only from the moment on when it is reported as computed.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from engine.errors import DeadlineExceeded, TransferFailed
from kv_transfer.errors import LinkBroken, Withdrawn
from kv_transfer.sender import OutgoingKv
from kv_transfer.transports.fault_injection import Fault, FaultPlan, FaultyOpener
from kv_transfer.transports.selection import open_channel
from tests.kv_transfer.rig import (
    LAYOUT,
    QUICK,
    TRANSPORTS,
    eventually,
    linked,
    loop_turns,
    over,
    same,
)

BLOCKS = list(range(20))
WRITTEN = list(range(30, 50))
TOKENS = len(BLOCKS) * LAYOUT.block_size - 3
KV = OutgoingKv("t", "d0", tuple(BLOCKS), TOKENS, first_token=None)
CHUNK = 40
LAYERS = len(LAYOUT.layers)


class Prompt:
    """Computes the source blocks chunk by chunk; what is not computed yet is noise."""

    def __init__(self, pair):
        self.cache = pair.source
        self.truth = [layer.clone() for layer in pair.source.layers]
        for layer in pair.source.layers:
            layer.fill_(-1.0)

    def compute(self, start, stop, layers):
        """Tokens of the prompt, as the engine writes them: slot by slot."""
        for number in layers:
            for token in range(start, min(stop, TOKENS)):
                block, slot = BLOCKS[token // LAYOUT.block_size], token % LAYOUT.block_size
                self.cache.layers[number][:, block, slot] = self.truth[number][:, block, slot]

    def arrived(self, target):
        """Whether the target has all of it; the slots beyond the prompt do not matter."""
        whole = TOKENS // LAYOUT.block_size
        return all(
            theirs[:, WRITTEN[:whole]].equal(mine[:, BLOCKS[:whole]])
            and theirs[:, WRITTEN[whole], :5].equal(mine[:, BLOCKS[whole], :5])
            for mine, theirs in zip(self.truth, target.layers, strict=True)
        )


@asynccontextmanager
async def handing_over(pair):
    handing = pair.sender.begin(KV)
    try:
        yield handing
    finally:
        await handing.close("given up")


async def compute(prompt, handing, by_layer=False):
    for start in range(0, TOKENS, CHUNK):
        stop = min(start + CHUNK, TOKENS)
        for layer in range(LAYERS):
            prompt.compute(start, stop, [layer])
            if by_layer:
                handing.reached(stop, layer + 1)
                await loop_turns(20)
        handing.reached(stop)
        await loop_turns(50)


def blocks_landed(pair):
    """How many of the transfer's blocks the receiver has written in any layer."""
    written = sum(
        layer[:, WRITTEN].abs().sum(dim=(0, *range(2, layer.dim()))) for layer in pair.target.layers
    )
    return int((written > 0).sum())


def taking(pair, answers):
    """Receive, giving blocks or None as `answers` say, one for each time of asking."""
    asked = []

    async def admit(offered):
        asked.append(offered.first_token)
        return (WRITTEN, 1) if answers.pop(0) else None

    task = asyncio.create_task(pair.receiver.receive(pair.peer, "t", admit, 10.0))
    return task, asked


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("by_layer", [False, True])
async def test_blocks_leave_while_others_are_computed(transport, by_layer):
    async with linked(**over(transport)) as pair:
        await pair.move("warm", [0], [0])
        prompt = Prompt(pair)
        task, asked = taking(pair, [True])
        async with handing_over(pair) as handing:
            await compute(prompt, handing, by_layer)
            await eventually(lambda: blocks_landed(pair) > 2)
            assert not task.done()
            handing.complete(77)
            sent = await handing.committed(5.0)
        received = await task
        assert asked == [None]
        assert received.first_token == 77
        assert sent == received.bytes == len(BLOCKS) * pair.source.block_bytes(0, LAYERS)
        assert prompt.arrived(pair.target)
        await eventually(pair.idle)


async def test_the_last_blocks_leave_before_the_first_token_is_known_however_few():
    """Anything else is worth a frame only when it is large."""
    async with linked(replace(QUICK, frame_bytes=1 << 20)) as pair:
        await pair.move("warm", [0], [0])
        prompt = Prompt(pair)
        task, _ = taking(pair, [True])
        async with handing_over(pair) as handing:
            prompt.compute(0, TOKENS, range(LAYERS))
            handing.reached(TOKENS - 1)
            await pair.move("between", [50], [60])  # a frame announced before it would be first
            assert blocks_landed(pair) == 0
            handing.reached(TOKENS)
            await eventually(lambda: prompt.arrived(pair.target))
            assert not task.done()
            handing.complete(5)
            await handing.committed(5.0)
        assert (await task).first_token == 5
        assert prompt.arrived(pair.target)
        await eventually(pair.idle)


async def test_kv_without_early_blocks_leaves_at_the_end_of_the_prompt():
    async with linked() as pair:
        await pair.move("warm", [0], [0])
        prompt = Prompt(pair)
        task, asked = taking(pair, [False, True])
        async with handing_over(pair) as handing:
            await compute(prompt, handing)
            assert asked == [None]
            handing.complete(5)
            await handing.committed(5.0)
        assert (await task).first_token == 5
        assert asked == [None, 5]
        assert prompt.arrived(pair.target)
        await eventually(pair.idle)


async def test_a_link_that_opens_late_sees_the_complete_offer_alone():
    async with linked() as pair:
        prompt = Prompt(pair)
        async with handing_over(pair) as handing:
            await compute(prompt, handing)
            handing.complete(5)
            task, asked = taking(pair, [True])
            await handing.committed(5.0)
        await task
        assert asked == [5]
        assert prompt.arrived(pair.target)


async def test_a_first_token_that_ends_the_request_withdraws_the_rest():
    async with linked() as pair:
        await pair.move("warm", [0], [0])
        prompt = Prompt(pair)
        task, _ = taking(pair, [True])
        async with handing_over(pair) as handing:
            await compute(prompt, handing)
            await handing.close("the first token ended it")
        with pytest.raises(Withdrawn, match="the first token ended it"):
            await task
        assert pair.sender.transfers_failed == 0
        await pair.move("next", [1], [2])
        await eventually(pair.idle)


async def test_a_prompt_that_fails_withdraws_the_blocks_that_have_left():
    async with linked() as pair:
        await pair.move("warm", [0], [0])
        prompt = Prompt(pair)
        task, _ = taking(pair, [True])
        with pytest.raises(ZeroDivisionError):
            async with handing_over(pair) as handing:
                await compute(prompt, handing)
                raise ZeroDivisionError
        with pytest.raises(Withdrawn):
            await task
        await eventually(pair.idle)


async def test_a_receiver_that_gives_up_early_does_not_disturb_the_prompt():
    async with linked() as pair:
        await pair.move("warm", [0], [0])
        prompt = Prompt(pair)
        task, _ = taking(pair, [True])
        async with handing_over(pair) as handing:
            handing.reached(CHUNK)
            await eventually(lambda: blocks_landed(pair) > 0)
            task.cancel()
            await compute(prompt, handing)
            handing.complete(5)
            with pytest.raises(TransferFailed, match="the receiver cancelled"):
                await handing.committed(5.0)
        await eventually(pair.idle)


async def test_a_link_that_breaks_while_the_prompt_is_computed():
    opener = FaultyOpener(open_channel, [FaultPlan(Fault.FAIL, 2)])
    async with linked(replace(QUICK, io_timeout_s=0.3), receiver_opener=opener) as pair:
        await pair.move("warm", [0], [0])
        prompt = Prompt(pair)
        task, _ = taking(pair, [True])
        async with handing_over(pair) as handing:
            await compute(prompt, handing)
            handing.complete(5)
            with pytest.raises(LinkBroken):
                await handing.committed(5.0)
        with pytest.raises(LinkBroken):
            await task
        await pair.move("next", [1], [2])
        assert same(pair.source, [1], pair.target, [2])


async def test_the_lease_counts_from_the_end_of_the_prompt():
    async with linked() as pair:
        prompt = Prompt(pair)
        with pytest.raises(DeadlineExceeded, match="lease"):
            async with handing_over(pair) as handing:
                await compute(prompt, handing)
                handing.complete(5)
                await handing.committed(0.1)
