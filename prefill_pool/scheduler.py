"""Which prompt tokens a prefill replica computes next. Pure: no clock, no I/O.

A request's life here:

    submit ─▶ waiting ──(blocks for the whole prompt)──▶ running ──(last chunk)──▶ parked ─▶ gone
                 └────────────── remove, at any point ───────────┴───────────────────┘

A prompt starts behind its cached prefix, and the blocks that a chunk fills are named at once.

Earliest deadline first, shortest remaining first among equals; a later arrival has a later
deadline, so nothing starves. Nothing is started while too many blocks are parked.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.blocks import BlockPool, Phase
from engine.errors import Overloaded, PromptTooLong
from engine.prefix_cache import PrefixCache
from engine.sequence import Sequence, Span


@dataclass(slots=True)
class _Entry:
    sequence: Sequence
    deadline: float
    arrival: int
    started: bool = False

    @property
    def key(self) -> tuple[float, int, int]:
        return (self.deadline, self.sequence.remaining, self.arrival)


class PrefillScheduler:
    """Chunk batches over a block pool. Every owner is in one of waiting, running, parked.

    `identity` is that of the model and its KV layout; without it there is no prefix cache.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        chunk_tokens: int,
        max_waiting: int,
        parked_fraction: float,
        identity: str | None = None,
    ) -> None:
        self.pool = pool
        self._cache = PrefixCache(pool, block_size, identity, "prefill")
        self._chunk_tokens = chunk_tokens
        self._max_waiting = max_waiting
        self._parked_limit = parked_fraction * pool.total
        self._active: dict[str, _Entry] = {}
        self._parked: set[str] = set()
        self._in_step: set[str] = set()
        self._leaving: set[str] = set()
        self._arrivals = 0

    @property
    def waiting(self) -> int:
        """Requests that hold no blocks yet."""
        return sum(not entry.started for entry in self._active.values())

    @property
    def running(self) -> int:
        """Requests with part of their prompt computed or being computed."""
        return sum(entry.started for entry in self._active.values())

    @property
    def parked(self) -> int:
        """Requests whose KV is complete and waits to be handed over."""
        return len(self._parked)

    def owners(self) -> frozenset[str]:
        """Everyone this scheduler answers for."""
        return frozenset(self._active) | self._parked | self._leaving

    def submit(self, sequence: Sequence, deadline: float) -> None:
        """Queue a prompt. PromptTooLong if it can never fit, Overloaded if the queue is full."""
        needed = self._cache.blocks_for(len(sequence.tokens))
        if needed > self.pool.total:
            raise PromptTooLong(
                f"the prompt needs {needed} KV blocks, the prefill pool has {self.pool.total}"
            )
        if self.waiting >= self._max_waiting:
            raise Overloaded(f"{self._max_waiting} prompts wait already", retry_after_s=1.0)
        self._arrivals += 1
        self._active[sequence.owner] = _Entry(sequence, deadline, self._arrivals)

    def schedule(self) -> list[Span]:
        """The next chunk batch, at most `chunk_tokens` tokens; empty when nothing can run."""
        budget = self._chunk_tokens
        spans = []
        full = False
        for entry in sorted(self._active.values(), key=lambda entry: entry.key):
            if budget == 0:
                break
            # Whoever finds no blocks holds back those behind it that need some too, but not those
            # that have theirs: they are the ones that will free some.
            full = full or not self._start(entry)
            if full and not entry.started:
                continue
            sequence = entry.sequence
            count = min(budget, sequence.remaining)
            spans.append(Span(sequence, sequence.computed, count))
            budget -= count
        self._in_step = {span.sequence.owner for span in spans}
        return spans

    def complete(self, spans: list[Span]) -> list[Sequence]:
        """Note that a batch was computed; returns the sequences whose prompt is now whole.

        Those are parked: their blocks stay, leased, until `remove`. A step that failed completes
        nothing: call with no spans.
        """
        self._end_step()
        finished = []
        for span in spans:
            sequence = span.sequence
            if sequence.owner not in self._active:
                continue
            sequence.computed += span.count
            self._cache.publish(sequence)
            if sequence.remaining == 0:
                del self._active[sequence.owner]
                self._parked.add(sequence.owner)
                self.pool.set_phase(sequence.owner, Phase.LEASED)
                finished.append(sequence)
        return finished

    def remove(self, owner: str) -> None:
        """Forget a request and free its blocks, after the step that uses them. Idempotent."""
        known = self._active.pop(owner, None) is not None or owner in self._parked
        self._parked.discard(owner)
        if owner in self._in_step:
            if known:
                self._leaving.add(owner)
            return
        self.pool.release(owner)

    def leaving(self, owner: str) -> bool:
        """Whether a step still writes to the blocks of a request that was removed."""
        return owner in self._leaving

    def _end_step(self) -> None:
        self._in_step.clear()
        for owner in self._leaving:
            self.pool.release(owner)
        self._leaving.clear()

    def _start(self, entry: _Entry) -> bool:
        """Give a waiting request its blocks if there is room; True if it may run."""
        if entry.started:
            return True
        if self.pool.counts().leased > self._parked_limit:
            return False
        entry.started = self._cache.start(entry.sequence)
        return entry.started
