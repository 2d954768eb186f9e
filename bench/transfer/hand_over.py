"""Whole hand-overs between two processes, of complete KV and of KV that is being computed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.core.statistics import Spread
from bench.transfer.floor import Parts, median_parts
from bench.transfer.shape import HOST, LAYOUT, SECRET, transfer_config
from cluster.sockets import join, listening_socket
from cluster.work_progress import tracked
from engine.kv.cache import KvCache
from kv_transfer.links.link_stream import MOST_LINK_BYTES
from kv_transfer.sender import KvSender, OutgoingKv
from protos.wire.server import WireServer
from protos.wire.streams import StreamServer

PROMPTS = (1024, 4096, 32_768)
FLIGHTS = (8, 32)
FLIGHT_TOKENS = 1024
EARLY_PROMPTS = (2048, 4096, 8192)
BLOCKS = max(PROMPTS) // LAYOUT.block_size
ROUNDS = 9
# The speed of the engine alone (`bench/REPORT.md`), and the slices of the prefill loop.
CHUNK, TOKENS_PER_S, SLICE_S = 512, 2800, 0.02
_LISTENS_S = 0.2


@dataclass(frozen=True, slots=True)
class HandOverLoad:
    """Several requests of one length at once, round by round.

    It has the seconds until the receiver has committed all of them; an early hand-over counts from
    the end of the computing. The parts of the floor, and the link if there is one (bytes per
    second), are timed in between.
    """

    transport: str
    tokens: int
    requests: int
    early: bool
    seconds: Spread
    parts: tuple[Parts, ...]
    link: Spread | None

    @property
    def title(self) -> str:
        """A title of the moved KV."""
        if self.early:
            return f"{self.transport}, {self.tokens:,} tokens while computed"
        return f"{self.transport}, {self.requests} x {self.tokens:,} tokens"

    @property
    def floor_s(self) -> float:
        """The median seconds of gather, link, checksum and scatter one after the other."""
        return median_parts(self.parts).floor_s(self.link.median if self.link else None)

    @property
    def of_floor(self) -> float:
        """The time over the floor."""
        return self.seconds.median / self.floor_s


class ReceivingProcess:
    """The receiving process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.transfer.peer", str(BLOCKS)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.hear()

    def tell(self, **order: Any) -> None:
        """Send an order to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait until the order is carried out; raises RuntimeError if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the receiving process has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Sending:
    """One KvSender, of this process's cache, and the other process that receives from it."""

    def __init__(self, transport: str, cache: KvCache, other: ReceivingProcess) -> None:
        self._transport = transport
        self._other = other
        self._address = ""
        self._sender = KvSender("bench-prefill", HOST, cache, transfer_config(transport))
        self._streams = StreamServer(self._sender.serve_link, MOST_LINK_BYTES)
        self._server = WireServer(SECRET, {"link": self._streams.accept})

    async def start(self) -> None:
        """Serve on a free port."""
        self._sender.start()
        sock = listening_socket(HOST, 0)
        self._address = join(HOST, sock.getsockname()[1])
        await self._server.start(sock, self._address)

    async def close(self) -> None:
        """End the link."""
        await self._sender.close()
        await self._server.stop()
        await self._streams.stop()

    async def hand_over(self, tokens: int, requests: int) -> float:
        """Seconds from the offers to the last commit; all are expected when they are offered."""
        offers = [_kv(index, tokens, 1) for index in range(requests)]
        await self._expect(offers)
        started = time.perf_counter()
        await asyncio.gather(*(self._sender.hand_over(offer, 60.0) for offer in offers))
        return await self._last_commit() - started

    async def hand_over_early(self, tokens: int, _: int = 1) -> float:
        """Seconds from the end of one prompt to the commit."""
        kv = _kv(0, tokens, None)
        await self._expect([kv])
        handing = self._sender.begin(kv)
        layers = len(LAYOUT.layers)
        for start in range(0, tokens, CHUNK):
            began = time.perf_counter()
            seconds = CHUNK / TOKENS_PER_S
            while (passed := time.perf_counter() - began + SLICE_S) < seconds:
                await asyncio.sleep(SLICE_S)
                handing.reached(start + CHUNK, int(layers * passed / seconds))
            await asyncio.sleep(max(0.0, began + seconds - time.perf_counter()))
            if start + CHUNK < tokens:
                handing.reached(start + CHUNK)
        started = time.perf_counter()
        handing.complete(1)
        await handing.committed(60.0)
        seconds = await self._last_commit() - started
        await handing.close("done")
        return seconds

    async def _expect(self, offers: list[OutgoingKv]) -> None:
        names = [offer.transfer for offer in offers]
        order = {"transport": self._transport, "address": self._address, "names": names}
        self._other.tell(do="kv", **order)
        await asyncio.sleep(_LISTENS_S)

    async def _last_commit(self) -> float:
        """The time of the other process's last commit, by the clock of both."""
        answer = await asyncio.to_thread(self._other.hear)
        return float(max(answer["committed_s"]))


async def measure(
    transport: str,
    time_floor: Callable[[list[int]], Parts],
    time_link: Callable[[], float] | None,
    cache: KvCache,
    other: ReceivingProcess,
) -> list[HandOverLoad]:
    """Measure one prompt, many prompts, and one being computed, in turn with the floor."""
    sending = Sending(transport, cache, other)
    await sending.start()
    found = []
    try:
        await sending.hand_over(FLIGHT_TOKENS, 1)
        cases = [(tokens, 1, False) for tokens in PROMPTS]
        cases += [(FLIGHT_TOKENS, requests, False) for requests in FLIGHTS]
        cases += [(tokens, 1, True) for tokens in EARLY_PROMPTS]
        for tokens, requests, early in tracked(f"hand-overs, {transport}", cases):
            blocks = list(range(tokens * requests // LAYOUT.block_size))
            way = sending.hand_over_early if early else sending.hand_over
            times, parts, links = [], [], []
            for _ in range(ROUNDS):
                parts.append(time_floor(blocks))
                links += [time_link()] if time_link else []
                times.append(await way(tokens, requests))
            seconds, link = Spread(tuple(times)), Spread(tuple(links)) if links else None
            found.append(
                HandOverLoad(transport, tokens, requests, early, seconds, tuple(parts), link)
            )
    finally:
        await sending.close()
    return found


def _kv(index: int, tokens: int, first_token: int | None) -> OutgoingKv:
    """The index-th range of blocks, under a name of its own."""
    blocks = tokens // LAYOUT.block_size
    owned = tuple(range(index * blocks, (index + 1) * blocks))
    name = f"{time.monotonic_ns()}-{index}"
    return OutgoingKv(name, "bench-decode", owned, tokens, first_token)
