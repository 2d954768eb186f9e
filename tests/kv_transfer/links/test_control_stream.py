"""The control stream by itself, its clock in the test's hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kv_transfer.errors import LinkBroken
from kv_transfer.links import control_stream as control
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.control_stream import ControlStream
from protos import kv_transfer_pb2 as pb
from tests.kv_transfer.rig import QUICK


async def test_silence_ends_at_its_limit_and_not_with_the_beat_behind_it(monkeypatch):
    now = 0.0

    async def pass_by(seconds):
        nonlocal now
        now += seconds

    config = replace(QUICK, silence_s=1.0, heartbeat_s=0.3)
    watched = ControlStream(config, wire.to_sender(heartbeat=pb.Heartbeat()))
    watched._heard = True
    with monkeypatch.context() as patch:
        patch.setattr(control.asyncio, "sleep", pass_by)
        patch.setattr(control.time, "monotonic", lambda: now)
        with pytest.raises(LinkBroken, match="silent"):
            await watched._watch()
    assert now == pytest.approx(1.0)
    assert watched._outgoing.qsize() == 4
