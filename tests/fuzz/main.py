"""`make fuzz`: many fuzzed requests to every port of a cluster, and what must hold of it.

No 5xx, no INTERNAL, no traceback, no process lost, no bystander's stream paused for more than a
second, and a log that does not grow with the requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from tandem_client import Client
from tests.fuzz.chats import KINDS
from tests.fuzz.fuzzers import GrpcFuzzer, HttpFuzzer, SocketFuzzer
from tests.fuzz.inside import MemberFuzzer, StrangerFuzzer
from tests.fuzz.run import Found, Fuzzer, fuzz

# Of the log: of the start, and of each second, in which each kind of refusal may have one.
_LINES = 100
_LINES_PER_S = 10
_MOST_PAUSE_S = 1.0


@dataclass
class Serving:
    """The cluster under test: its addresses, its process, and the file with its log."""

    addresses: dict[str, Any]
    process: subprocess.Popen[str]
    log: Path


@contextmanager
def serving() -> Iterator[Serving]:
    """A cluster of the tiny model in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()[-3000:]
            yield Serving(json.loads(line), process, log)
        finally:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def attack(
    cluster: Serving, requests: int, seed: int, first: int = 0, kinds: Sequence[str] = ()
) -> Found:
    """Send what all fuzzers make to the cluster, from number `first` on.

    `kinds` are of `tests/fuzz/chats.py`: the public front ends get requests of these kinds alone.
    """
    host, _, port = cluster.addresses["http"].rpartition(":")

    async def bystander() -> Client:
        return Client(cluster.addresses["grpc"])

    async with grpc.aio.insecure_channel(cluster.addresses["grpc"]) as channel:
        fuzzers: list[Fuzzer] = [
            HttpFuzzer(host, int(port), kinds=kinds),
            GrpcFuzzer(channel, operator_key=cluster.addresses["operator_key"], kinds=kinds),
            SocketFuzzer(host, int(port), kinds=kinds),
        ]
        if not kinds:
            inside = cluster.addresses["inside"]
            fuzzers += [StrangerFuzzer(inside), MemberFuzzer(inside, cluster.addresses["secret"])]
        return await fuzz(fuzzers, range(first, first + requests), seed, bystander)


def faults(
    cluster: Serving, found: Found, took_s: float, most_pause_s: float = math.inf
) -> list[str]:
    """What must not be, in words; `took_s` is how long the run was."""
    text = cluster.log.read_text()
    wrong = list(found.bad)
    if cluster.process.poll() is not None:
        wrong.append(f"the server ended with {cluster.process.returncode}")
    if "Traceback" in text:
        wrong.append(f"a traceback in the log: {text[text.index('Traceback') :][:2000]}")
    wrong += [line for line in text.splitlines() if " error " in line][:20]
    lines = len(text.splitlines())
    if lines > _LINES + _LINES_PER_S * took_s:
        wrong.append(f"{lines} lines of the log in {took_s:.0f} s")
    if found.own_pause_s > most_pause_s / 2:
        wrong.append(f"the fuzzer itself stood for {found.own_pause_s:.2f} s")
    if found.longest_pause_s > most_pause_s:
        wrong.append(f"the bystander's stream paused for {found.longest_pause_s:.2f} s")
    return wrong


def main() -> None:
    """Run, print what came of it, and end with 1 if something must not be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--first", type=int, default=0, help="the number of the first request")
    parser.add_argument("--kinds", nargs="+", choices=("all", *KINDS), default=[])
    chosen = parser.parse_args()
    kinds = list(KINDS) if "all" in chosen.kinds else chosen.kinds
    with serving() as cluster:
        began_s = time.monotonic()
        found = asyncio.run(attack(cluster, chosen.requests, chosen.seed, chosen.first, kinds))
        took_s = time.monotonic() - began_s
        wrong = faults(cluster, found, took_s, _MOST_PAUSE_S)
        lines = len(cluster.log.read_text().splitlines())
    numbers = f"{chosen.requests} requests from {chosen.first}"
    print(f"seed {chosen.seed}: {numbers} in {took_s:.0f} s, {lines} log lines")
    print(found.table())
    print("\n".join(wrong[:40]) or "nothing that must not be")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
