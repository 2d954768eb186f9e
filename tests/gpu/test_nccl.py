"""The NCCL channel between two processes, on one GPU if there is no other.

NCCL takes ranks of one host on one GPU for a mistake. Told that each is a host of its own, it goes
over a socket: its speed is nothing to go by, but all calls of the channel are the real ones.
"""

import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from bench.transfer.tcp_store import open_store_client, open_store_server
from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.nccl import NcclChannel, nccl_available
from kv_transfer.transports.transport import RECEIVER_RANK, SENDER_RANK, ChannelSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not nccl_available(), reason="needs NCCL and a CUDA device"),
]
HOST = "127.0.0.1"
SIZES = (1, 4097, 8 << 20, 7)
JOIN_S, WAIT_S, OUTLIVES_S, ENDS_S = 60.0, 20.0, 75.0, 150.0


def channel_of(port, prefix, rank):
    device = torch.device("cuda", rank % torch.cuda.device_count())
    store = open_store_client(HOST, int(port), prefix, JOIN_S)
    return NcclChannel(ChannelSpec("nccl", prefix, rank, HOST, device, JOIN_S, store))


def random_bytes(size):
    generator = torch.Generator().manual_seed(size)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).cuda()


def echo(channel):
    """Send back what comes, each byte one more; then what was posted ahead, in its order."""
    into = torch.empty(max(SIZES), dtype=torch.uint8, device=channel.staging_device)
    for size in SIZES:
        arrived = channel.receive(into, size)(WAIT_S)
        answer = arrived.data + 1
        channel.send(answer)(WAIT_S)
        arrived.taken()
    buffers = [
        torch.empty(5000, dtype=torch.uint8, device=channel.staging_device) for _ in range(4)
    ]
    receipts = [channel.receive(buffer, 5000) for buffer in buffers]
    for number, receipt in enumerate(receipts):
        assert int(receipt(WAIT_S).data.sum()) == 5000 * number


def ask(channel):
    for size in SIZES:
        data = random_bytes(size).to(channel.staging_device)
        channel.send(data)(WAIT_S)
        arrived = channel.receive(torch.empty_like(data), size)(WAIT_S)
        assert torch.equal(arrived.data, data + 1)
        arrived.taken()
    full = [torch.full((5000,), n, dtype=torch.uint8, device=data.device) for n in range(4)]
    for wait in [channel.send(buffer) for buffer in full]:
        wait(WAIT_S)


def ask_nobody(channel):
    """The peer is there and sends nothing: the wait ends, the channel is broken, closing is
    quick.
    """
    into, began = (
        torch.empty(100, dtype=torch.uint8, device=channel.staging_device),
        time.monotonic(),
    )
    with pytest.raises(ChannelBroken, match="nccl recv"):
        channel.receive(into, 100)(0.5)
    with pytest.raises(ChannelBroken):
        channel.send(into)
    print(f"a channel without a sender was closed after {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < 10


def ask_the_dead(channel):
    time.sleep(3)
    ask_nobody(channel)


def abort_a_wait(channel):
    """The peer is there and sends nothing: an abort ends the wait long before its time."""
    wait = channel.receive(torch.empty(100, dtype=torch.uint8, device=channel.staging_device), 100)
    with ThreadPoolExecutor(1) as thread:
        waiting, began = thread.submit(wait, WAIT_S), time.monotonic()
        channel.abort()
        assert time.monotonic() - began < 0.1
        with pytest.raises(ChannelBroken, match="aborted"):
            waiting.result(WAIT_S)
    assert time.monotonic() - began < WAIT_S / 2


def outlive_the_dead(channel):
    """torch's watchdog would end this process about a minute after its peer died."""
    with pytest.raises(ChannelBroken):
        channel.receive(torch.empty(100, dtype=torch.uint8, device=channel.staging_device), 100)(5)
    Event().wait(OUTLIVES_S)


def stay(channel):
    time.sleep(15)


def die(channel):
    time.sleep(1)  # the other has joined
    os._exit(0)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (ask, echo),
        (ask_nobody, stay),
        (ask_the_dead, die),
        (abort_a_wait, stay),
        (outlive_the_dead, die),
    ],
    ids=lambda side: side.__name__,
)
def test_two_processes(here, there):
    store, prefix = open_store_server(HOST, JOIN_S), uuid.uuid4().hex
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.test_nccl", f"{store.port}", prefix, f"{rank}", name],
            env=os.environ | {"NCCL_HOSTID": f"rank-{rank}", "NCCL_SOCKET_IFNAME": "lo"},
        )
        for rank, name in ((SENDER_RANK, here.__name__), (RECEIVER_RANK, there.__name__))
    ]
    try:
        assert both[0].wait(ENDS_S) == 0
        assert both[1].wait(ENDS_S) == 0
    finally:
        for process in both:
            process.kill()
            process.wait()


def test_joining_alone_ends_in_time():
    """In a process of its own: a call into NCCL that hangs could not be ended."""
    store = open_store_server(HOST, JOIN_S)
    code = (
        "import tests.gpu.test_nccl as test; test.JOIN_S = 1.0\n"
        f"try: test.channel_of({store.port}, 'alone', 0)\n"
        "except test.ChannelBroken as error: print(error)\n"
        "else: raise SystemExit('joined nobody')"
    )
    subprocess.run([sys.executable, "-c", code], timeout=ENDS_S, check=True)


def main(port, prefix, rank, name):
    channel = channel_of(port, prefix, int(rank))
    try:
        globals()[name](channel)
    finally:
        channel.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
