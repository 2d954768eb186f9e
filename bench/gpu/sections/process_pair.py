"""Channels between processes that pose as hosts: bytes, join time, memory, and a killed peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from bench.gpu.channel_peer import HOST, JOIN_S
from bench.gpu.section import Row

_ROOT = Path(__file__).resolve().parents[3]
_MIB = 1 << 20
_SIZES, _DRY_SIZES = (1 * _MIB, 32 * _MIB), (64 << 10, 1 * _MIB)
_REPEATS = 5
_PAIRS = (1, 2, 4)
# torch's watchdog would end a process about a minute after its peer died.
_OUTLIVES_S, _DRY_OUTLIVES_S = 75.0, 1.0
# Bound: for one answer of a process.
_ANSWER_S = 90.0

# Most of the names used here are missing from torch's type stubs.
_dist: Any = torch.distributed


class _Process:
    """A process with channels, asked by lines."""

    def __init__(self, number: int, kind: str, port: int, threads: ThreadPoolExecutor) -> None:
        environment = os.environ | {"NCCL_HOSTID": f"bench-{number}", "NCCL_SOCKET_IFNAME": "lo"}
        self._threads = threads
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.gpu.channel_peer", kind, f"{port}"],
            cwd=_ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.ready = threads.submit(self._line)

    def ask(self, do: str, **values: Any) -> Future[Row]:
        """Send a command; its answer comes later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self._process.stdin.flush()
        return self._threads.submit(self._line)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def _line(self) -> Row:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            # A library may print a line of its own.
            if line.startswith("{"):
                found: Row = json.loads(line)
                return found
        return {"error": "the process ended"}


def run(device: torch.device, dry: bool) -> Iterator[Row]:
    """Rows of joins, moves, and of the processes that outlived a killed one."""
    timeout = timedelta(seconds=JOIN_S)
    store = _dist.TCPStore(HOST, 0, None, True, timeout=timeout, wait_for_workers=False)
    with ThreadPoolExecutor(6) as threads:
        processes = [_Process(n, device.type, store.port, threads) for n in range(3)]
        try:
            for process in processes:
                process.ready.result(_ANSWER_S)
            first, second, third = processes
            yield from _joins(first, second)
            yield from _moves(first, second, dry)
            yield from _killed(first, second, third, dry)
        finally:
            for process in processes:
                process.kill()


def _both(one: Future[Row], other: Future[Row]) -> tuple[Row, Row]:
    return one.result(_ANSWER_S), other.result(_ANSWER_S)


def _join(name: str, one: _Process, other: _Process, **values: Any) -> tuple[Row, Row]:
    joins = (p.ask("join", name=name, rank=rank, **values) for rank, p in enumerate((one, other)))
    return _both(*joins)


def _joins(one: _Process, other: _Process) -> Iterator[Row]:
    """Joins of 1, 2 and 4 pairs of channels, and their memory.

    A GPU tells the memory of both processes, and a CPU that of one.
    """
    opened = taken = 0
    for pairs in _PAIRS:
        seconds = []
        for number in range(opened, pairs):
            told, _ = _join(f"pair-{number}", one, other)
            if "error" in told:
                raise RuntimeError(f"join of pair {number}: {told['error']}")
            seconds.append(told["seconds"])
            taken += told["taken_bytes"]
        opened = pairs
        yield {
            "transport": told["transport"],
            "pairs": pairs,
            "join_s": max(seconds),
            "taken_mib": taken / _MIB,
            "mib_a_pair": taken / pairs / _MIB,
        }


def _moves(one: _Process, other: _Process, dry: bool) -> Iterator[Row]:
    """Messages of some sizes, each with a new buffer."""
    for size in _DRY_SIZES if dry else _SIZES:
        seconds = []
        for _ in range(_REPEATS):
            got, sent = _both(
                other.ask("receive", name="pair-0", size=size),
                one.ask("send", name="pair-0", size=size),
            )
            for told in (got, sent):
                if "error" in told:
                    raise RuntimeError(f"{size} bytes: {told['error']}")
            seconds.append(max(got["seconds"], sent["seconds"]))
        best_s = min(seconds)
        moved = {"bytes": size, "whole": got["whole"]}
        yield {**moved, "ms": best_s * 1e3, "gb_s": size / best_s / 1e9}


def _killed(one: _Process, other: _Process, victim: _Process, dry: bool) -> Iterator[Row]:
    """A third process dies in the middle of a message; the other two live and move bytes."""
    timeout_s = 2.0 if dry else 5.0
    _join("victim", one, victim, timeout_s=timeout_s)
    size = (_DRY_SIZES if dry else _SIZES)[-1]
    # The victim has joined and sends nothing, so the message is under way when it dies.
    under_way = one.ask("receive", name="victim", size=size, timeout_s=timeout_s)
    time.sleep(0.5)
    victim.kill()
    began_s = time.monotonic()
    told = under_way.result(_ANSWER_S)
    yield {"killed": True, "noticed_s": time.monotonic() - began_s, "error": told.get("error")}
    outlives_s = _DRY_OUTLIVES_S if dry else _OUTLIVES_S
    time.sleep(max(0.0, began_s + outlives_s - time.monotonic()))
    got, _ = _both(
        other.ask("receive", name="pair-1", size=_DRY_SIZES[0]),
        one.ask("send", name="pair-1", size=_DRY_SIZES[0]),
    )
    yield {
        "after_s": time.monotonic() - began_s,
        "alive": [one.alive, other.alive],
        "moves_bytes": got.get("whole", False),
    }
