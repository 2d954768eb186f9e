"""The NCCL channel with stand-ins for NCCL and CUDA: settings, aborts, and who sees them.

What NCCL itself does is tested on GPUs alone (tests/gpu/test_nccl.py).
"""

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports import nccl
from kv_transfer.transports.nccl import NcclChannel
from kv_transfer.transports.transport import ChannelSpec

WATCHDOG = ("ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT")
LONG_S = 60.0


class Options:
    def __init__(self):
        self.config = SimpleNamespace(max_ctas=None)


class StandInGroup:
    """A group whose messages end when `world.done` is set, and whose abort takes its time."""

    world: SimpleNamespace
    Options = Options

    def __init__(self, store, rank, size, options):
        self.world.groups.append(self)
        self.options = options
        self.environment = dict(os.environ)

    def eager_connect_single_device(self, device):
        self.world.free -= 100 << 20

    def send(self, tensors, peer, tag):
        return SimpleNamespace(wait=lambda: None)

    recv = send

    def abort(self):
        self.world.aborting.set()
        assert self.world.may_end.wait(10)
        # The kernels of an aborted communicator end.
        self.world.done.set()
        self.world.aborted.set()


class StandInStreams:
    """Streams by number."""

    def __init__(self):
        self.given = []
        self.taken = 0

    def take(self, device):
        self.taken += 1
        return SimpleNamespace(number=self.taken, wait_stream=lambda other: None)

    def give(self, stream):
        self.given.append(stream.number)


class Values(dict):
    """A store where the other end has joined too."""

    def set(self, key, value):
        self[key] = value

    def get(self, key):
        return b""


@pytest.fixture
def world(monkeypatch):
    """One process with NCCL; messages end at once until `done` is cleared."""
    world = SimpleNamespace(groups=[], free=1 << 30, streams=StandInStreams())
    for name in ("done", "aborting", "aborted", "may_end"):
        setattr(world, name, threading.Event())
    world.done.set()
    world.may_end.set()
    group = type("Group", (StandInGroup,), {"world": world})
    monkeypatch.setattr(dist, "ProcessGroupNCCL", group, raising=False)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(nccl, "STREAMS", world.streams)
    event = SimpleNamespace(record=lambda stream: None, query=world.done.is_set)
    stand_ins = {
        "is_available": lambda: True,
        "mem_get_info": lambda device: (world.free, 1 << 30),
        "current_stream": lambda device: None,
        "stream": lambda stream: nullcontext(),
        "Event": lambda: event,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    for name in (*WATCHDOG, "DEBUG", "DEBUG_FILE", "DEBUG_SUBSYS"):
        for prefix in ("TORCH_NCCL_", "NCCL_"):
            # Set and deleted, so that what the channel sets is undone.
            monkeypatch.setenv(prefix + name, "x")
            monkeypatch.delenv(prefix + name)
    nccl.prepared.cache_clear()
    yield world
    nccl.prepared.cache_clear()


def open_channel():
    spec = ChannelSpec("nccl", "c", 0, "127.0.0.1", torch.device("cpu"), 5.0, Values())
    return NcclChannel(spec)


BUFFER = torch.zeros(8, dtype=torch.uint8)


def test_the_watchdog_is_quiet_before_the_group_is_made_and_ctas_are_few(world):
    open_channel()
    (group,) = world.groups
    assert {group.environment[f"TORCH_NCCL_{name}"] for name in WATCHDOG} == {"0"}
    assert group.environment["NCCL_DEBUG"] == "INFO"
    assert 1 <= group.options.config.max_ctas <= 4


def test_the_log_tells_the_time_and_memory_of_a_join_and_the_network(world, caplog):
    caplog.set_level(logging.INFO)
    os.environ["NCCL_DEBUG"] = "INFO"
    open_channel()
    assert "joined in 0.0 s, 100 MiB, by what NCCL_DEBUG=INFO tells" in caplog.text


def test_an_abort_ends_a_wait_at_once_and_blocks_nobody(world):
    """The buffer comes back only when NCCL writes to it no more."""
    channel = open_channel()
    world.done.clear()
    world.may_end.clear()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(channel.receive(BUFFER, 8), LONG_S)
        began = time.monotonic()
        channel.abort()
        assert world.aborting.wait(5)
        assert not waiting.done()
        world.may_end.set()
        with pytest.raises(ChannelBroken, match="nccl recv was aborted"):
            waiting.result(5)
        assert world.aborted.is_set()
        # Closing does not queue behind the wait's time limit.
        thread.submit(channel.close).result(5)
    assert time.monotonic() - began < 5


def test_what_ends_by_an_abort_has_not_arrived(world):
    channel = open_channel()
    wait = channel.receive(BUFFER, 8)
    channel.abort()
    assert world.aborted.wait(5)
    assert world.done.is_set()
    with pytest.raises(ChannelBroken, match="was aborted"):
        wait(LONG_S)


def test_a_wait_that_runs_out_of_time_aborts_and_closes(world):
    channel = open_channel()
    world.done.clear()
    with pytest.raises(ChannelBroken, match=r"took longer than 0\.05 s"):
        channel.send(BUFFER)(0.05)
    assert world.aborted.is_set()
    with pytest.raises(ChannelBroken, match="closed"):
        channel.send(BUFFER)


def test_each_channel_has_a_stream_until_it_is_closed(world):
    first, second = open_channel(), open_channel()
    assert world.streams.taken == 2
    first.abort()
    first.close()
    first.close()
    assert world.streams.given == [1]
    second.close()
    assert world.streams.given == [1, 2]


def test_a_group_that_cannot_be_made_is_a_broken_channel(world, monkeypatch):
    def fail(self, device):
        raise RuntimeError("no peer")

    monkeypatch.setattr(dist.ProcessGroupNCCL, "eager_connect_single_device", fail)
    with pytest.raises(ChannelBroken, match="nccl join: no peer"):
        open_channel()
    assert world.streams.taken == 0
