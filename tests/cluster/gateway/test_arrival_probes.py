"""What waits at a socket is measured, and every request arrived before it was read."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from contextlib import suppress

import grpc
import grpc.aio
import pytest

from cluster.api.event_streams import end
from cluster.gateway import arrival_probes
from cluster.gateway.arrival_probes import ArrivalProbe, GrpcArrivals, SocketArrivals
from cluster.gateway.grpc_server import start
from tandem_client.protos import inference_pb2, inference_pb2_grpc
from tests.cluster.gateway.http_listener import CHAT, HELLO, TEXT, asking
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.eventually import eventually

BLOCKED_S = 0.1


def test_a_probe_that_still_waits_counts():
    clock = [10.0]
    probe = ArrivalProbe("http", lambda: clock[0])
    assert probe.arrived() == 10.0
    probe.sent()
    clock[0] = 10.5
    assert probe.lag_s == 0.5 and probe.arrived() == 10.0
    probe.seen()
    clock[0] = 11.0
    assert probe.lag_s == 0.5 and probe.arrived() == 10.5
    probe.seen()  # not sent, as by a stranger
    assert probe.lag_s == 0.5


async def test_after_a_long_wait_the_next_probe_goes_at_once(monkeypatch):
    """A process that was paused takes no new request for one that waited."""
    monkeypatch.setattr(arrival_probes, "_EVERY_S", 3600.0)
    clock, waits = [0.0], [7200.0, 0.0]
    probe = ArrivalProbe("http", lambda: clock[0])

    async def send():
        probe.sent()
        clock[0] += waits.pop(0)
        probe.seen()

    following = asyncio.create_task(probe.follow(send))
    await eventually(lambda: not waits)
    assert probe.lag_s == 0.0
    await end([following])


async def test_a_lack_of_files_is_no_wait(caplog):
    """Requests by open connections are not refused as late where no new one can be accepted."""
    connections = await SocketArrivals.start()
    await eventually(lambda: connections.probe.lag_s > 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # One file is left, which the probe's own end takes.
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        slept_s, longest_s = time.monotonic(), 0.0
        for until_s in (slept_s + 1.5, slept_s + 2.0):
            while slept_s < until_s:
                await asyncio.sleep(0.05)
                # What the machine takes from this process is a wait, and no fault.
                longest_s = max(longest_s, time.monotonic() - slept_s)
                slept_s = time.monotonic()
                assert connections.probe.lag_s < 0.9 + longest_s
            with suppress(OSError):  # from now on the probe's own end lacks a file, too
                held.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in held:
            os.close(one)
    assert len([line for line in caplog.messages if "no probe" in line]) <= 1
    before = connections.probe.lag_s
    await eventually(lambda: connections.probe.lag_s != before)
    await connections.stop()


async def test_the_wait_for_a_busy_event_loop_is_seen_by_both_probes():
    server, calls = grpc.aio.server(), GrpcArrivals()
    calls.add_to(server)
    await server.start()
    calls.start()
    connections = await SocketArrivals.start()
    try:
        for probe in (calls.probe, connections.probe):
            await eventually(lambda probe=probe: probe.lag_s > 0)
        longest = [0.0, 0.0]

        def blocked():
            time.sleep(BLOCKED_S)
            seen = calls.probe.lag_s, connections.probe.lag_s
            longest[:] = map(max, longest, seen)
            return min(longest) > BLOCKED_S

        # In every pass of the loop, so that no probe is read in the pass after it was sent.
        await eventually(blocked, 30.0, poll_s=0)
        calm = BLOCKED_S * 0.9
        await eventually(lambda: max(calls.probe.lag_s, connections.probe.lag_s) < calm)
    finally:
        await calls.stop()
        await connections.stop()
        await server.stop(0)
    assert not calls._folder.path.exists() and not connections._folder.path.exists()


async def test_a_grpc_request_arrived_before_it_was_read(monkeypatch):
    monkeypatch.setattr(ArrivalProbe, "lag_s", 2.0)
    generator = ScriptedGenerator()
    server = await start(generator)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            async for _ in stub.Generate(inference_pb2.GenerateRequest(text="a")):
                pass
            # The probe's method has a name that nobody else knows.
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/tandem.internal.v1.Arrival/Probe")(b"")
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await server.stop(0)
    (asked,) = generator.requests
    assert 2.0 <= time.monotonic() - asked.arrived_s < 60.0


@pytest.mark.parametrize(("path", "body"), [(CHAT, HELLO), (TEXT, {"prompt": "hello"})])
async def test_an_http_request_arrived_before_its_body_was_read(path, body):
    generator, began_s = ScriptedGenerator(), time.monotonic()
    async with asking(generator, arrived=lambda: began_s - 2.0) as client:
        assert (await client.post(path, json=body)).status_code == 200
    assert [one.arrived_s for one in generator.requests] == [began_s - 2.0]
    await asyncio.sleep(0)
