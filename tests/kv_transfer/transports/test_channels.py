"""One contract for every transport, in one process and across two."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.fault_injection import Fault, FaultPlan, FaultyOpener
from kv_transfer.transports.nccl import nccl_available
from kv_transfer.transports.selection import open_channel
from kv_transfer.transports.transport import RECEIVER_RANK, SENDER_RANK
from tests.kv_transfer.rig import OVER_NIXL, wait_until
from tests.kv_transfer.transports.channel_rig import (
    blank,
    filled,
    is_waiting,
    make_spec,
    opened,
    receive,
)
from tests.kv_transfer.transports.contract import ChannelContract

two_gpus = pytest.mark.skipif(
    not nccl_available() or torch.cuda.device_count() < 2,
    reason="nccl needs an NCCL build of torch and two CUDA devices",
)
a_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="cuda_ipc needs a CUDA build of torch and a CUDA device"
)
TRANSPORTS = [
    OVER_NIXL,
    "loopback",
    "gloo",
    "shared_memory",
    pytest.param("nccl", marks=[pytest.mark.gpu, two_gpus]),
    pytest.param("cuda_ipc", marks=[pytest.mark.gpu, a_gpu]),
]
ACROSS = [transport for transport in TRANSPORTS if transport != "loopback"]


@pytest.mark.parametrize("channels", TRANSPORTS, indirect=True)
class TestContract(ChannelContract):
    """Every transport that this machine can run."""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_joining_alone_ends_in_time(transport, store):
    started = time.monotonic()
    with pytest.raises(ChannelBroken):
        open_channel(make_spec(transport, SENDER_RANK, store.port, uuid.uuid4().hex, timeout_s=0.5))
    assert time.monotonic() - started < 30


def test_abort_frees_a_loopback_waiter(store):
    with opened("loopback", store) as (sender, receiver), ThreadPoolExecutor(1) as thread:
        waiter = thread.submit(threading.get_native_id).result()
        waiting = thread.submit(receiver.receive(blank(receiver, 10), 10), 30.0)
        assert wait_until(lambda: is_waiting(waiter, waiting))
        sender.abort()
        with pytest.raises(ChannelBroken):
            waiting.result(20)


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
        for wait, timeout_s in zip(waits, [1.5, *[60.0] * len(waits)], strict=False):
            with pytest.raises(ChannelBroken):
                wait(timeout_s)
        assert time.monotonic() - started < 40


@pytest.mark.parametrize("transport", ACROSS)
def test_messages_go_both_ways_between_two_processes(transport, store):
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

    def test_a_corrupt_fault_changes_one_byte_of_one_message(self, store):
        results, sending = self.run(store, Fault.CORRUPT)
        assert results == [0, 1, 0]
        sending.result()

    @pytest.mark.parametrize("fault", [Fault.FAIL, Fault.DIE_HALF])
    def test_a_failing_fault_breaks_both_ends(self, store, fault):
        results, sending = self.run(store, fault)
        assert results[0] == 0
        assert isinstance(results[1], ChannelBroken)
        with pytest.raises(ChannelBroken):
            sending.result()

    def test_a_slow_fault_delays_and_changes_nothing(self, store):
        started = time.monotonic()
        results, _ = self.run(store, Fault.SLOW, seconds=0.1)
        assert results == [0, 0, 0]
        assert time.monotonic() - started > 0.2

    def test_a_hanging_fault_hangs_until_it_is_released(self, store):
        opener = FaultyOpener(open_channel, [FaultPlan(Fault.HANG)])
        with opened("loopback", store, opener):
            channel = opener.channels[0]
            thread = threading.Thread(target=self.ignore_broken, args=(channel,))
            thread.start()
            channel.abort()
            thread.join(0.2)
            assert thread.is_alive()
            opener.release()
            thread.join(20)
            assert not thread.is_alive()

    def ignore_broken(self, channel):
        with pytest.raises(ChannelBroken):
            channel.receive(blank(channel, 10), 10)(0.1)
