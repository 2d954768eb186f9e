"""What is particular to memory shared between processes: proof, late writers, dead peers."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from engine.kv.shared_segments import SharedSegment, segment_of, shared_tensor
from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.mapped_memory import MappedExtent, MappedMemory
from kv_transfer.transports.same_host import own_witness, separation_from
from kv_transfer.transports.selection import open_channel
from kv_transfer.transports.transport import SENDER_RANK
from tests.kv_transfer.rig import linked, wait_until, with_transport
from tests.kv_transfer.transports.channel_rig import (
    blank,
    filled,
    is_waiting,
    make_spec,
    opened,
    receive,
)

# Waits for two numbers on its standard input, then opens its end and says nothing more.
SILENT_PEER = """
import sys, time
from kv_transfer.transports.selection import open_channel
from tests.kv_transfer.transports.channel_rig import make_spec
channel = open_channel(make_spec("shared_memory", 1, int(sys.argv[1]), sys.argv[2], 60.0))
print("in", flush=True)
time.sleep(60)
"""


def extent(segment, size, offset=0):
    pid, descriptor = os.getpid(), segment.descriptor
    return MappedExtent(pid, descriptor, segment.identity, segment.generation, offset, size)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def segments():
    """How many are mapped in this process."""
    return Path("/proc/self/maps").read_text().count("memfd:tandem-kv")


def test_a_witness_proves_nothing_unless_its_file_can_be_read():
    own = own_witness()
    assert separation_from(own) is None
    assert "different hosts" in separation_from(replace(own, boot="another"))
    assert "process namespace" in separation_from(replace(own, nonce=bytes(32)))
    assert "process namespace" in separation_from(replace(own, nonce=b""))
    assert "cannot be opened" in separation_from(replace(own, descriptor=9999))
    assert "no shared memory" in separation_from(replace(own, boot=""))


def test_a_witness_that_is_not_a_file_is_not_read():
    reading, writing = os.pipe()
    try:
        assert "process namespace" in separation_from(replace(own_witness(), descriptor=reading))
    finally:
        os.close(reading)
        os.close(writing)


def test_bytes_that_the_sender_takes_back_are_refused():
    data = shared_tensor(1000)
    segment, offset = segment_of(data[100:])
    assert offset == 100
    before = extent(segment, 900, offset)
    mapped = MappedMemory(before)
    for _ in range(2):
        assert torch.equal(mapped.view(before), data[100:])
    segment.renew()
    with pytest.raises(ChannelBroken, match="taken its buffer back"):
        mapped.view(before)


def test_a_write_during_a_read_is_detected_after_the_read(store):
    """The sender gives up waiting and takes its buffer back while the receiver reads it."""
    with opened("shared_memory", store) as (sender, receiver):
        data = shared_tensor(5000)
        sending = sender.send(data)
        arrived = receiver.receive(blank(receiver, 5000), 5000)(5.0)
        with pytest.raises(ChannelBroken, match="took too long"):
            sending(0.1)
        data.fill_(7)
        with pytest.raises(ChannelBroken, match="taken its buffer back"):
            arrived.taken()


def test_a_message_read_in_place_lives_as_long_as_its_reader_needs_it(store):
    with opened("shared_memory", store) as (sender, receiver):
        sending = sender.send(filled(sender, 5000, 3))
        arrived = receiver.receive(blank(receiver, 5000), 5000)(5.0)
    del sending
    gc.collect()
    assert torch.equal(arrived.data, filled(sender, 5000, 3))
    with pytest.raises(ChannelBroken, match="aborted"):
        arrived.taken()


def test_a_segment_that_could_shrink_is_refused(tmp_path):
    with (tmp_path / "file").open("wb+") as file:
        file.truncate(1 << 16)
        where = MappedExtent(os.getpid(), file.fileno(), 1, 1, 0, 10)
        with pytest.raises(ChannelBroken):
            MappedMemory(where)


def test_views_of_different_ranges_follow_each_other():
    data = shared_tensor(1000)
    data.copy_(torch.arange(1000))
    segment, _ = segment_of(data)
    mapped = MappedMemory(extent(segment, 1000))
    for size, offset in [(1000, 0), (10, 0), (10, 0), (10, 5), (1000, 0)]:
        view = mapped.view(extent(segment, size, offset))
        assert torch.equal(view, data[offset : offset + size])


def test_reading_beyond_a_segment_is_refused():
    segment, _ = segment_of(shared_tensor(1000)) or pytest.fail("not shared")
    where = extent(segment, 1001)
    with pytest.raises(ChannelBroken, match="1001 bytes"):
        MappedMemory(where).view(where)


def test_a_segment_ends_with_its_tensor():
    before = descriptors()
    data = shared_tensor(1000)
    assert isinstance(segment_of(data)[0], SharedSegment)
    del data
    # Threads of earlier tests may close theirs meanwhile.
    assert descriptors() <= before


def test_a_channel_leaves_no_descriptor(store):
    def move():
        with opened("shared_memory", store) as (sender, receiver), ThreadPoolExecutor(1) as thread:
            thread.submit(sender.send(filled(sender, 5000, 1)), 5.0)
            receive(receiver, 5000)

    move()
    before, moves = descriptors(), 5
    for _ in range(moves):
        move()
    # The threads of the last move may still be closing theirs.
    assert descriptors() < before + moves


@pytest.mark.parametrize("call", ["send", "receive"])
def test_a_killed_peer_ends_a_wait_at_once_and_leaves_nothing(store, call):
    mapped = segments()
    command = [sys.executable, "-c", SILENT_PEER, str(store.port), f"killed-{call}"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    channel = open_channel(
        make_spec("shared_memory", SENDER_RANK, store.port, f"killed-{call}", 60.0)
    )
    try:
        assert child.stdout.readline() == b"in\n"
        calls = {
            "send": lambda: channel.send(filled(channel, 5000, 1))(30.0),
            "receive": lambda: channel.receive(blank(channel, 5000), 5000)(30.0),
        }
        with ThreadPoolExecutor(1) as thread:
            waiter = thread.submit(threading.get_native_id).result()
            waiting = thread.submit(calls[call])
            assert wait_until(partial(is_waiting, waiter, waiting))
            child.send_signal(signal.SIGKILL)
            with pytest.raises(ChannelBroken, match="gone"):
                waiting.result(60)
    finally:
        channel.close()
        child.kill()
        child.wait()
        child.stdout.close()
    # What failed holds the frames it came from, and they hold the channel's own segment.
    del waiting
    gc.collect()
    assert segments() <= mapped


def test_abort_frees_a_waiter(store):
    with opened("shared_memory", store) as (_, receiver), ThreadPoolExecutor(1) as thread:
        waiter = thread.submit(threading.get_native_id).result()
        waiting = thread.submit(receiver.receive(blank(receiver, 10), 10), 30.0)
        assert wait_until(lambda: is_waiting(waiter, waiting))
        receiver.abort()
        with pytest.raises(ChannelBroken, match="aborted"):
            waiting.result(60)


def test_abort_drops_a_message_that_was_not_received_yet(store):
    with opened("shared_memory", store) as (sender, receiver):
        sending = sender.send(filled(sender, 10, 1))
        receipt = receiver.receive(blank(receiver, 10), 10)
        receiver.abort()
        with pytest.raises(ChannelBroken, match="aborted"):
            receipt(5.0)
        del sending


def test_a_broken_channel_repeats_its_error_at_once(store):
    with opened("shared_memory", store) as (sender, receiver):
        waits = [receiver.receive(blank(receiver, 10), 10) for _ in range(2)]
        with pytest.raises(ChannelBroken, match="too long"):
            waits[0](0.1)
        sender.close()
        started = time.monotonic()
        with pytest.raises(ChannelBroken, match="too long"):
            waits[1](30.0)
        assert time.monotonic() - started < 10


def test_a_wait_on_broken_pipes_ends_at_once(store):
    """A channel may wait without a poll before, as `cuda_ipc` does."""
    with opened("shared_memory", store) as (_, receiver):
        pipes = receiver._pipes
        receiver.close()
        started = time.monotonic()
        with pytest.raises(ChannelBroken, match="closed"):
            pipes.receive(30.0, "receive")
        assert time.monotonic() - started < 10


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_waiting_thread_is_kept_off_the_core_of_its_peer(store):
    allowed = os.sched_getaffinity(0)
    peer = min(allowed)
    with opened("shared_memory", store) as (sender, receiver), ThreadPoolExecutor(1) as thread:
        waiter = thread.submit(threading.get_native_id).result()
        receiver._peer_core = peer
        waiting = thread.submit(receiver.receive(blank(receiver, 10), 10), 30.0)
        assert wait_until(lambda: os.sched_getaffinity(waiter) == allowed - {peer})
        sending = sender.send(filled(sender, 10, 1))
        waiting.result(60).taken()
        sending(5.0)
        assert os.sched_getaffinity(waiter) == allowed


async def test_the_senders_staging_is_in_shared_memory_and_the_receivers_is_not():
    in_segments = {"send": set(), "receive": set()}

    def recorded(spec):
        channel = open_channel(spec)
        send, post = channel.send, channel.receive

        def recorded_send(buffer):
            in_segments["send"].add(segment_of(buffer) is not None)
            return send(buffer)

        def recorded_receive(staging, size):
            in_segments["receive"].add(segment_of(staging) is not None)
            return post(staging, size)

        channel.send, channel.receive = recorded_send, recorded_receive
        return channel

    async with linked(with_transport("shared_memory"), recorded, recorded) as pair:
        await pair.move("t", [1, 2], [3, 4])
    assert in_segments == {"send": {True}, "receive": {False}}
