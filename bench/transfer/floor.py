"""The floor of moving KV: each part of it alone, timed in the same run.

The parts are those of a hand-over: gather into frames, the link, a checksum, scatter from frames.
"""

from __future__ import annotations

import socket
import statistics
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import memmove
from dataclasses import dataclass

import torch

from bench.transfer.shape import FRAME_BYTES, HOST, channel_spec
from bench.transfer.tcp_store import open_store_server
from engine.kv.cache import KvCache
from engine.kv.shared_segments import shared_tensor
from kv_transfer.frames.borrowed_blocks import BlockBorrower, BlockLender
from kv_transfer.frames.checksum import checksum
from kv_transfer.frames.frame_plan import Extent, FramePart, frame_size, plan_frames
from kv_transfer.transports.selection import open_channel
from kv_transfer.transports.transport import SENDER_RANK, Wait

MESSAGES = 32
# Buffers on each side of a plain copy and of a channel. With a single buffer the data would stay in
# the processor's cache, and TCP would be a third faster.
BUFFERS = 3
# Messages until the processor has both sides in its cache.
WARM = 16
Tell = Callable[..., None]  # an order for the other process
Hear = Callable[[], object]  # waits until the other process has carried the order out


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds for the bytes of one hand-over."""

    gather_s: float
    checksum_s: float
    scatter_s: float
    bytes: int

    def floor_s(self, link_rate: float | None) -> float:
        """The seconds of all parts one after the other; of three parts without a link."""
        link_s = self.bytes / link_rate if link_rate else 0.0
        return self.gather_s + self.checksum_s + self.scatter_s + link_s


def median_parts(rounds: Sequence[Parts]) -> Parts:
    """The median of each part over some rounds."""
    return Parts(
        statistics.median(each.gather_s for each in rounds),
        statistics.median(each.checksum_s for each in rounds),
        statistics.median(each.scatter_s for each in rounds),
        rounds[0].bytes,
    )


def time_parts(cache: KvCache, blocks: list[int]) -> Parts:
    """Time the parts over all frames of these blocks, on one thread as in a replica."""
    whole = Extent(0, len(cache.layers), 0, len(blocks))
    plan = plan_frames(cache.layout, whole, frame_size(cache.layout, whole, FRAME_BYTES))
    staging = torch.empty(FRAME_BYTES, dtype=torch.uint8)

    def gather(part: FramePart, data: torch.Tensor) -> None:
        wanted = blocks[part.block_start : part.block_stop]
        cache.gather(wanted, part.layer_start, part.layer_stop, data)

    def scatter(part: FramePart, data: torch.Tensor) -> None:
        wanted = blocks[part.block_start : part.block_stop]
        cache.scatter(wanted, part.layer_start, part.layer_stop, data)

    def over(work: Callable[[FramePart, torch.Tensor], object]) -> float:
        started = time.perf_counter()
        for part in plan:
            work(part, staging[: part.bytes])
        return time.perf_counter() - started

    return Parts(
        over(gather),
        over(lambda _, data: checksum(data)),
        over(scatter),
        sum(part.bytes for part in plan),
    )


def time_copy(cache: KvCache, target: KvCache, blocks: list[int]) -> Parts:
    """Time one copy of borrowed blocks into the blocks of another cache."""
    lender = BlockLender(cache)
    extent, loan = lender.extent(), lender.lend(blocks)
    if extent is None or loan is None:
        raise RuntimeError("blocks of this cache cannot be borrowed")
    borrower = BlockBorrower(target, extent, cache.blocks)
    started = time.perf_counter()
    borrower.copy(loan, blocks, range(len(blocks)), range(len(cache.layers)))
    seconds = time.perf_counter() - started
    lender.end(loan)
    return Parts(0.0, 0.0, seconds, len(blocks) * cache.block_bytes(0, len(cache.layers)))


def time_memcpy() -> float:
    """Bytes per second of copying frames in one process, from memory like a channel's."""
    sources = [_staging("shared_memory") for _ in range(BUFFERS)]
    targets = [torch.zeros(FRAME_BYTES, dtype=torch.uint8) for _ in range(BUFFERS)]

    def copy(messages: int) -> None:
        for index in range(messages):
            source, target = sources[index % BUFFERS], targets[index % BUFFERS]
            memmove(target.data_ptr(), source.data_ptr(), FRAME_BYTES)

    return _rate(copy)


def time_tcp(tell: Tell, hear: Hear, *, answered: bool) -> float:
    """Bytes per second over plain TCP; each frame or only the last is answered with a byte."""
    payloads = [bytes(bytearray(FRAME_BYTES)) for _ in range(BUFFERS)]
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(20)
        order = {"port": server.getsockname()[1], "answered": answered}
        tell(do="tcp", warm=WARM, messages=MESSAGES, **order)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(20)

            def send(messages: int) -> None:
                for left in range(messages - 1, -1, -1):
                    connection.sendall(payloads[left % BUFFERS])
                    if answered or not left:
                        connection.recv(1)

            rate = _rate(send)
    hear()
    return rate


def time_channel(transport: str, ahead: int, tell: Tell, hear: Hear) -> float:
    """Bytes per second through a channel of that transport alone, without its control stream.

    ValueError for more messages under way than there are buffers.
    """
    if ahead > BUFFERS:
        raise ValueError(f"{ahead} messages under way in {BUFFERS} buffers")
    store = open_store_server(HOST, 20.0)
    prefix = uuid.uuid4().hex
    order = {"transport": transport, "port": store.port, "prefix": prefix, "ahead": ahead}
    tell(do="channel", warm=WARM, messages=MESSAGES, **order)
    channel = open_channel(channel_spec(transport, store.port, prefix, SENDER_RANK))
    buffers = [_staging(transport) for _ in range(BUFFERS)]
    rate = _rate(Ahead(lambda index: channel.send(buffers[index % BUFFERS]), ahead).post)
    hear()
    channel.close()
    return rate


class Ahead:
    """Posts messages in order, `ahead` at a time, as the channel thread of a link does."""

    def __init__(self, post: Callable[[int], Wait], ahead: int) -> None:
        self._post = post
        self._ahead = ahead

    def post(self, messages: int) -> None:
        """Post that many messages and wait for the last."""
        waits: deque[Wait] = deque()
        for index in range(messages):
            if len(waits) == self._ahead:
                waits.popleft()(10.0)
            waits.append(self._post(index))
        for wait in waits:
            wait(10.0)


def _staging(transport: str) -> torch.Tensor:
    if transport == "shared_memory":
        return shared_tensor(FRAME_BYTES).fill_(1)
    return torch.ones(FRAME_BYTES, dtype=torch.uint8)


def _rate(move: Callable[[int], None]) -> float:
    """Bytes per second of a function that moves that many frames."""
    move(WARM)
    started = time.perf_counter()
    move(MESSAGES)
    return MESSAGES * FRAME_BYTES / (time.perf_counter() - started)
