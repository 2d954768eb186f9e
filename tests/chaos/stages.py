"""The steps of a hand-over at which something goes wrong, played by a sender.

As a process of its own: says its address, plays the stage named on its command line, and waits.
"""

from __future__ import annotations

import asyncio
import json
import sys

from kv_transfer.sender import OutgoingKv
from kv_transfer.transports.fault_injection import Fault, FaultPlan, FaultyOpener
from kv_transfer.transports.selection import open_channel
from tests.kv_transfer.rig import LAYOUT, apart, make_cache, sending

BLOCKS = 24
TOKENS = BLOCKS * LAYOUT.block_size
# The link is up and nothing is offered; blocks are waited for; half a prompt has left; frames move;
# all has left but for the first token.
STAGES = ("expected", "offered", "early", "sending", "sent")


def opener_for(stage):
    """A channel that is slow enough to be met in the middle of its frames."""
    plan = [FaultPlan(Fault.SLOW, 0, 0.3)] if stage == "sending" else []
    return FaultyOpener(open_channel, plan)


def start(sender, stage, receiver="d0"):
    """Bring a hand-over named after the stage that far; the hand-over, or None before there is."""
    if stage == "expected":
        return None
    early = stage in ("early", "sent")
    first_token = None if early else 1
    kv = OutgoingKv(stage, receiver, tuple(range(BLOCKS)), TOKENS, first_token)
    handing = sender.begin(kv)
    if early:
        handing.reached(TOKENS if stage == "sent" else TOKENS // 2)
    return handing


async def main(stage: str) -> None:
    config = apart("auto")
    async with sending(stage, config, make_cache(seed=1), opener_for(stage)) as side:
        print(json.dumps({"address": side.peer.address}), flush=True)
        start(side.sender, stage)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
