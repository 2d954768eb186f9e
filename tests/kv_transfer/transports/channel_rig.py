"""Channels opened in one process, and messages whose bytes are known."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from bench.transfer.tcp_store import open_store_client
from kv_transfer.transports.registry import channel_class
from kv_transfer.transports.selection import open_channel
from kv_transfer.transports.transport import ChannelSpec
from tests.kv_transfer.rig import HOST


def device_of(transport, rank):
    """A device that the transport can move KV of."""
    kind = channel_class(transport).needs.device
    if kind in ("one_gpu", "two_gpus"):
        return torch.device("cuda", rank if kind == "two_gpus" else 0)
    return torch.device("cpu")


def make_spec(transport, rank, port, name, timeout_s=5.0):
    device = device_of(transport, rank)
    store = open_store_client(HOST, port, name, timeout_s)
    return ChannelSpec(transport, name, rank, HOST, device, timeout_s, store)


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


def receive(channel, size, buffer_bytes=None):
    """A message of that size, read to its end."""
    arrived = channel.receive(blank(channel, buffer_bytes or size), size)(5.0)
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


def is_waiting(thread_id, call):
    """Whether that thread has begun the call and sleeps in it."""
    if not call.running():
        return False
    status = Path(f"/proc/self/task/{thread_id}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "S"
