"""KV through the memory of one GPU, between two processes: exactness, and the speed in the log."""

import subprocess
import sys
import time
import uuid

import pytest
import torch

from bench.transfer.tcp_store import open_store_client, open_store_server
from kv_transfer.transports.cuda_ipc import CudaIpcChannel
from kv_transfer.transports.transport import RECEIVER_RANK, SENDER_RANK, ChannelSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
HOST = "127.0.0.1"
SIZE, MESSAGES = 8 << 20, 64
# Sends back what it gets, each byte one more; the last messages it only copies.
OTHER = """
import sys, torch
from tests.gpu.test_cuda_ipc import MESSAGES, SIZE, channel_of
from kv_transfer.transports.transport import RECEIVER_RANK
channel = channel_of(int(sys.argv[1]), sys.argv[2], RECEIVER_RANK)
into = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
for size in (1, 4097, SIZE):
    arrived = channel.receive(into, size)(20.0)
    answer = arrived.data + 1
    arrived.taken()
    channel.send(answer)(20.0)
for _ in range(MESSAGES):
    arrived = channel.receive(into, SIZE)(20.0)
    into.copy_(arrived.data)
    arrived.taken()
channel.close()
"""


def channel_of(port, prefix, rank):
    device = torch.device("cuda", 0)
    store = open_store_client(HOST, port, prefix, 60.0)
    return CudaIpcChannel(ChannelSpec("cuda_ipc", prefix, rank, HOST, device, 60.0, store))


def test_two_processes_read_each_others_memory():
    store, prefix = open_store_server(HOST, 60.0), uuid.uuid4().hex
    assert RECEIVER_RANK != SENDER_RANK
    other = subprocess.Popen([sys.executable, "-c", OTHER, str(store.port), prefix])
    channel = channel_of(store.port, prefix, SENDER_RANK)
    try:
        for size in (1, 4097, SIZE):
            data = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
            channel.send(data)(20.0)
            arrived = channel.receive(torch.empty_like(data), size)(20.0)
            assert torch.equal(arrived.data, data + 1)
            arrived.taken()
        through, plain = send_all(channel, data), copy_all(data)
        print(f"cuda_ipc {through / 1e9:.1f} GB/s, on the device {plain / 1e9:.1f} GB/s")
        assert other.wait(60) == 0
    finally:
        channel.close()
        other.kill()
        other.wait()


def send_all(channel, data):
    """Bytes per second, a few messages posted at a time."""
    buffers = [data.clone() for _ in range(channel.ahead)]
    started, waits = time.perf_counter(), []
    for index in range(MESSAGES):
        if len(waits) == channel.ahead:
            waits.pop(0)(20.0)
        waits.append(channel.send(buffers[index % channel.ahead]))
    for wait in waits:
        wait(20.0)
    return MESSAGES * SIZE / (time.perf_counter() - started)


def copy_all(data):
    """Bytes per second of the same copies within this process."""
    into = torch.empty_like(data)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(MESSAGES):
        into.copy_(data)
    torch.cuda.synchronize()
    return MESSAGES * SIZE / (time.perf_counter() - started)
