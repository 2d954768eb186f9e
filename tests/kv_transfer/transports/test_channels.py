"""One contract for every transport, in one process and across two."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.fault_injection import Fault, FaultPlan, FaultyOpener
from kv_transfer.transports.gloo import open_store_server
from kv_transfer.transports.nccl import nccl_available
from kv_transfer.transports.selection import open_channel
from kv_transfer.transports.transport import RECEIVER_RANK, SENDER_RANK, ChannelSpec
from tests.kv_transfer.rig import HOST

two_gpus = pytest.mark.skipif(
    not nccl_available() or torch.cuda.device_count() < 2,
    reason="nccl needs an NCCL build of torch and two CUDA devices",
)
a_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="cuda_ipc needs a CUDA build of torch and a CUDA device"
)
TRANSPORTS = [
    "loopback",
    "gloo",
    "shared_memory",
    pytest.param("nccl", marks=[pytest.mark.gpu, two_gpus]),
    pytest.param("cuda_ipc", marks=[pytest.mark.gpu, a_gpu]),
]
ACROSS = [transport for transport in TRANSPORTS if transport != "loopback"]


def device_of(transport, rank):
    if transport in ("nccl", "cuda_ipc"):
        return torch.device("cuda", rank if transport == "nccl" else 0)
    return torch.device("cpu")


def make_spec(transport, rank, port, prefix, timeout_s=5.0):
    device = device_of(transport, rank)
    return ChannelSpec(transport, HOST, port, prefix, rank, HOST, device, timeout_s)


@pytest.fixture(scope="module")
def store():
    return open_store_server(HOST, 5.0)


@pytest.fixture
def channels(request, store):
    """Both ends of one channel, opened at the same time as they must be."""
    with opened(request.param, store) as pair:
        yield pair


@contextmanager
def opened(transport, store, opener=open_channel):
    prefix = uuid.uuid4().hex
    specs = [make_spec(transport, rank, store.port, prefix) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        pair = list(threads.map(opener, specs))
    try:
        yield pair
    finally:
        for channel in pair:
            channel.abort()
        for channel in pair:
            channel.close()


def filled(channel, size, seed):
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return data.to(channel.staging_device)


def blank(channel, size):
    return torch.zeros(size, dtype=torch.uint8, device=channel.staging_device)


def receive(channel, size, room=None):
    """A message of that size, read to its end."""
    arrived = channel.receive(blank(channel, room or size), size)(5.0)
    data = arrived.data.cpu().clone()
    arrived.taken()
    return data


def two_ahead(calls):
    """Post a message while the one before is under way; what was received."""
    waits, received = [], []

    def end():
        arrived = waits.pop(0)(5.0)
        if arrived is not None:
            received.append(arrived.data.cpu().clone())
            arrived.taken()

    for post, *arguments in calls:
        if len(waits) == 2:
            end()
        waits.append(post(*arguments))
    while waits:
        end()
    return received


@pytest.mark.parametrize("channels", TRANSPORTS, indirect=True)
class TestContract:
    def test_bytes_arrive_in_order_and_whole(self, channels):
        sender, receiver = channels
        sizes = [1, 7, 4096, 3 << 20, 1, 100_003]
        with ThreadPoolExecutor(1) as thread:
            sending = thread.submit(
                lambda: [sender.send(filled(sender, size, size))(5.0) for size in sizes]
            )
            for size in sizes:
                assert torch.equal(receive(receiver, size), filled(sender, size, size).cpu())
            sending.result()

    def test_both_directions(self, channels):
        sender, receiver = channels
        with ThreadPoolExecutor(1) as thread:
            thread.submit(receiver.send(filled(receiver, 1000, 1)), 5.0)
            assert torch.equal(receive(sender, 1000), filled(sender, 1000, 1).cpu())

    def test_a_part_of_a_larger_buffer(self, channels):
        sender, receiver = channels
        with ThreadPoolExecutor(1) as thread:
            thread.submit(sender.send(filled(sender, 5000, 2)[:3000]), 5.0)
            data = receive(receiver, 3000, room=5000)
        assert torch.equal(data, filled(sender, 5000, 2)[:3000].cpu())

    def test_what_is_read_later_has_not_changed(self, channels):
        """Two messages are read in turn while both are held, as by a thread that copies."""
        sender, receiver = channels
        with ThreadPoolExecutor(1) as thread:
            messages = [(sender.send, filled(sender, 5000, n)) for n in (1, 2)]
            sending = thread.submit(two_ahead, messages)
            receipts = [receiver.receive(blank(receiver, 5000), 5000) for _ in range(2)]
            held = [receipt(5.0) for receipt in receipts]
            for number, arrived in enumerate(held, 1):
                assert torch.equal(arrived.data.cpu(), filled(sender, 5000, number).cpu())
                arrived.taken()
            sending.result()

    def test_messages_posted_ahead_arrive_in_order(self, channels):
        sender, receiver = channels
        sizes = [3000, 70_000, 3000, 1 << 20, 5]
        buffers = [blank(receiver, size) for size in sizes]
        with ThreadPoolExecutor(1) as thread:
            sending = thread.submit(two_ahead, [(sender.send, filled(sender, n, n)) for n in sizes])
            calls = [(receiver.receive, *each) for each in zip(buffers, sizes, strict=True)]
            received = two_ahead(calls)
            sending.result()
        for data, size in zip(received, sizes, strict=True):
            assert torch.equal(data, filled(sender, size, size).cpu())

    def test_a_sender_of_one_at_a_time_meets_receives_posted_ahead(self, channels):
        sender, receiver = channels
        with ThreadPoolExecutor(1) as thread:
            sending = thread.submit(
                lambda: [sender.send(filled(sender, 3000, n))(2.0) for n in range(5)]
            )
            calls = [(receiver.receive, blank(receiver, 3000), 3000) for _ in range(5)]
            received = two_ahead(calls)
            sending.result()
        for number, data in enumerate(received):
            assert torch.equal(data, filled(sender, 3000, number).cpu())

    def test_a_failure_ends_all_that_was_posted(self, channels):
        _, receiver = channels
        waits = [receiver.receive(blank(receiver, 100), 100) for _ in range(2)]
        started = time.monotonic()
        for wait in waits:
            with pytest.raises(ChannelBroken):
                wait(0.3)
        assert time.monotonic() - started < 3

    def test_a_receive_without_a_send_ends_in_time_and_breaks_the_channel(self, channels):
        _, receiver = channels
        started = time.monotonic()
        with pytest.raises(ChannelBroken):
            receiver.receive(blank(receiver, 100), 100)(0.3)
        assert 0.2 < time.monotonic() - started < 3
        with pytest.raises(ChannelBroken):
            receiver.receive(blank(receiver, 100), 100)(0.3)

    def test_nothing_works_after_close(self, channels):
        sender, _ = channels
        sender.close()
        with pytest.raises(ChannelBroken):
            sender.send(filled(sender, 10, 0))(0.3)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_joining_alone_ends_in_time(transport, store):
    started = time.monotonic()
    with pytest.raises(ChannelBroken):
        open_channel(make_spec(transport, SENDER_RANK, store.port, uuid.uuid4().hex, timeout_s=0.5))
    assert time.monotonic() - started < 5


def test_abort_frees_a_loopback_waiter(store):
    with opened("loopback", store) as (sender, receiver), ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(receiver.receive(blank(receiver, 10), 10), 30.0)
        time.sleep(0.05)
        sender.abort()
        with pytest.raises(ChannelBroken):
            waiting.result(2)


def test_loopback_refuses_another_size(store):
    with opened("loopback", store) as (sender, receiver), ThreadPoolExecutor(1) as thread:
        sending = thread.submit(sender.send(blank(sender, 10)), 2.0)
        with pytest.raises(ChannelBroken, match="10 bytes sent, 11 expected"):
            receiver.receive(blank(receiver, 11), 11)(2.0)
        with pytest.raises(ChannelBroken):
            sending.result()


def test_a_gloo_message_out_of_turn_does_not_end_the_process(store):
    """It is larger than agreed, but not than the buffer; the frame's checksum tells."""
    with opened("gloo", store) as (sender, receiver), ThreadPoolExecutor(1) as thread:
        thread.submit(sender.send(filled(sender, 5000, 3)), 2.0)
        buffer = blank(receiver, 8192)
        receiver.receive(buffer, 3000)(2.0)
        assert torch.equal(buffer[:5000], filled(sender, 5000, 3))


def test_a_gloo_failure_leaves_no_connection_its_own_timeout(store):
    """They are one channel: what was posted on the others ends with the first."""
    with opened("gloo", store) as (_, receiver):
        waits = [receiver.receive(blank(receiver, 100), 100) for _ in range(receiver.ahead)]
        started = time.monotonic()
        for wait in waits:
            with pytest.raises(ChannelBroken):
                wait(1.5)
        assert time.monotonic() - started < 2.9


@pytest.mark.parametrize("transport", ACROSS)
def test_across_two_processes(transport, store):
    """The other process sends back what it gets, each byte one more."""
    prefix = uuid.uuid4().hex
    arguments = json.dumps({"transport": transport, "port": store.port, "prefix": prefix})
    child = subprocess.Popen([sys.executable, "-m", "tests.kv_transfer.transports.echo", arguments])
    channel = open_channel(make_spec(transport, SENDER_RANK, store.port, prefix, timeout_s=60.0))
    try:
        for size in (1, 4097, 8 << 20):
            data = filled(channel, size, size)
            channel.send(data)(10.0)
            assert torch.equal(receive(channel, size), (data + 1).cpu())
        assert child.wait(30) == 0
    finally:
        channel.close()
        child.kill()
        child.wait()


class TestFaulty:
    """The faults are what they say, over loopback."""

    def run(self, store, fault, seconds=0.0, call=1):
        opener = FaultyOpener(open_channel, [FaultPlan(fault, call, seconds)])
        results = []
        prefix = uuid.uuid4().hex
        specs = [make_spec("loopback", rank, store.port, prefix) for rank in (0, 1)]
        with ThreadPoolExecutor(2) as threads:
            opening = threads.submit(opener, specs[RECEIVER_RANK])
            sender = open_channel(specs[SENDER_RANK])
            receiver = opening.result()

            def send():
                for index in range(3):
                    sender.send(filled(sender, 64, index))(2.0)

            sending = threads.submit(send)
            for index in range(3):
                try:
                    buffer = receiver.receive(blank(receiver, 64), 64)(2.0).data
                except ChannelBroken as error:
                    results.append(error)
                    break
                wrong = int((buffer != filled(receiver, 64, index)).sum())
                results.append(wrong)
            return results, sending

    def test_corrupt_changes_one_byte_of_one_message(self, store):
        results, sending = self.run(store, Fault.CORRUPT)
        assert results == [0, 1, 0]
        sending.result()

    @pytest.mark.parametrize("fault", [Fault.FAIL, Fault.DIE_HALF])
    def test_fail_breaks_both_ends(self, store, fault):
        results, sending = self.run(store, fault)
        assert results[0] == 0
        assert isinstance(results[1], ChannelBroken)
        with pytest.raises(ChannelBroken):
            sending.result()

    def test_slow_is_slow_and_right(self, store):
        started = time.monotonic()
        results, _ = self.run(store, Fault.SLOW, seconds=0.1)
        assert results == [0, 0, 0]
        assert time.monotonic() - started > 0.2

    def test_hang_hangs_until_released(self, store):
        opener = FaultyOpener(open_channel, [FaultPlan(Fault.HANG)])
        with opened("loopback", store, opener):
            channel = opener.channels[0]
            thread = threading.Thread(target=self.ignore_broken, args=(channel,))
            thread.start()
            channel.abort()
            thread.join(0.2)
            assert thread.is_alive()
            opener.release()
            thread.join(2)
            assert not thread.is_alive()

    def ignore_broken(self, channel):
        with pytest.raises(ChannelBroken):
            channel.receive(blank(channel, 10), 10)(0.1)
