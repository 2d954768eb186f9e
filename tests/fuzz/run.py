"""Sends the requests of all fuzzers at once, while a bystander streams and times its gaps."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cluster.api import Tokens
from cluster.work_progress import WorkProgress
from engine.errors import TandemError
from tandem_client import Client
from tests.fuzz.fuzzers import ANSWER_S

# A request that neither ends nor fails in this time hangs.
_HANGS_S = 90.0
_TICK_S = 0.05


class Fuzzer(Protocol):
    """Sends one fuzzed request and says what came of it."""

    name: str

    async def send(self, rng: random.Random) -> str:
        """See `tests/fuzz/fuzzers.py`."""
        ...


@dataclass
class Found:
    """What came of a run: counts of words by fuzzer, what must not be, the bystander's pause.

    `own_pause_s` is how long this process's own event loop stood at most: a bystander's pause is
    the server's only as far as it is longer.
    """

    words: dict[str, Counter[str]] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    longest_pause_s: float = 0.0
    own_pause_s: float = 0.0
    bystander_tokens: int = 0

    def table(self) -> str:
        """The counts, a line for each fuzzer."""
        lines = [
            f"{fuzzer}: " + ", ".join(f"{word} {count}" for word, count in words.most_common(12))
            for fuzzer, words in self.words.items()
        ]
        pause = f"bystander: {self.bystander_tokens} tokens, pause {self.longest_pause_s:.2f} s"
        pause += f", of this process {self.own_pause_s:.2f} s"
        return "\n".join([*lines, pause])


async def fuzz(
    fuzzers: Sequence[Fuzzer],
    requests: Sequence[int],
    seed: int,
    stream: Callable[[], Awaitable[Client]],
    at_once: int = 32,
) -> Found:
    """Send the requests of these numbers, of each fuzzer in turn.

    `stream` makes the bystander's client.
    """
    found = Found({fuzzer.name: Counter() for fuzzer in fuzzers})
    numbers = iter(requests)
    ended = asyncio.Event()
    client = await stream()
    watching = [
        asyncio.create_task(_watch(client, found, ended)),
        asyncio.create_task(_watch_own_loop(found, ended)),
    ]
    with WorkProgress("fuzz", len(requests)) as progress:
        senders = (_send(fuzzers, numbers, seed, found, progress) for _ in range(at_once))
        await asyncio.gather(*senders)
    ended.set()
    await asyncio.gather(*watching)
    await client.close()
    return found


async def _send(
    fuzzers: Sequence[Fuzzer],
    numbers: Iterator[int],
    seed: int,
    found: Found,
    progress: WorkProgress,
) -> None:
    for number in numbers:
        fuzzer = fuzzers[number % len(fuzzers)]
        try:
            async with asyncio.timeout(_HANGS_S):
                word = await fuzzer.send(random.Random(f"{seed}/{number}"))
        except TimeoutError:
            word = "bad:it hangs"
        except OSError as error:
            word = f"bad:{error}"
        if word.startswith("bad:"):
            found.bad.append(f"{fuzzer.name} {seed}/{number}: {word}")
            word = "bad"
        found.words[fuzzer.name][word] += 1
        progress.at(sum(words.total() for words in found.words.values()))


async def _watch(client: Client, found: Found, ended: asyncio.Event) -> None:
    """Stream one answer after the other, and note the longest time between two tokens."""
    while not ended.is_set():
        try:
            await _watch_one(client, found)
        except TandemError as error:
            found.bad.append(f"bystander: {error.message}")
            await asyncio.sleep(1.0)


async def _watch_own_loop(found: Found, ended: asyncio.Event) -> None:
    while not ended.is_set():
        began = time.monotonic()
        await asyncio.sleep(_TICK_S)
        found.own_pause_s = max(found.own_pause_s, time.monotonic() - began - _TICK_S)


async def _watch_one(client: Client, found: Found) -> None:
    last = None
    async for event in client.generate(
        "Once upon a time", max_tokens=200, ignore_eos=True, timeout_s=20 * ANSWER_S
    ):
        if isinstance(event, Tokens):
            now = time.monotonic()
            if last is not None:
                found.longest_pause_s = max(found.longest_pause_s, now - last)
            last = now
            found.bystander_tokens += len(event.tokens)
