"""The control stream by itself, with the test's clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kv_transfer.errors import LinkBroken
from kv_transfer.links import control_stream as control
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.control_stream import ControlStream
from protos import kv_transfer_pb2 as pb
from tests.kv_transfer.rig import QUICK, loop_turns


async def test_silence_ends_at_its_limit_and_not_at_the_next_heartbeat(monkeypatch):
    now, messages, heartbeats = 0.0, [wire.to_sender(joined=pb.Joined())], []

    async def pass_by(seconds):
        nonlocal now
        await loop_turns(5)
        now += seconds

    async def read():
        return messages.pop() if messages else await asyncio.Event().wait()

    async def write(message):
        heartbeats.extend(kind for kind, _ in map(wire.content, wire.split(message)))

    config = replace(QUICK, silence_s=1.0, heartbeat_s=0.3)
    stream = ControlStream(config, wire.to_sender(heartbeat=pb.Heartbeat()))
    # The module's own names, because the test itself needs the real event loop.
    monkeypatch.setattr(control, "asyncio", Asyncio(pass_by))
    monkeypatch.setattr(control.time, "monotonic", lambda: now)
    with pytest.raises(ExceptionGroup) as raised:
        await stream.run(read, write, lambda message: None)
    assert raised.group_contains(LinkBroken, match="silent for 1.0 s")
    assert now == pytest.approx(1.0)
    assert heartbeats == ["heartbeat"] * 4


class Asyncio:
    """The module asyncio with another clock."""

    def __init__(self, sleep):
        self.sleep = sleep

    def __getattr__(self, name):
        return getattr(asyncio, name)
