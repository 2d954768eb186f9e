"""Which prompt tokens a prefill replica computes next. Pure: no clock, no I/O.

A request's life here:

    submit ─▶ waiting ──(blocks for the whole prompt)──▶ running ──(last chunk)──▶ parked ─▶ gone
                 └────────────── remove, at any point ───────────┴───────────────────┘

A prompt starts behind its cached prefix, and the blocks that a chunk fills are named at once.

`engine/scheduling/prompt_order.py` says who comes next; one that is more urgent may overtake a
pass that was begun, between two layers. Nothing is started while too many blocks are parked.
"""

from __future__ import annotations

from engine.errors import PromptTooLong
from engine.kv.block_pool import BlockPhase, BlockPool
from engine.scheduling.prefix_cache import PrefixCache
from engine.scheduling.prompt_order import PromptOrder
from engine.scheduling.prompt_queue import PromptQueue, QueuePosition
from engine.types.lane_quota import require_room
from engine.types.sequence import Sequence, Span


class PrefillScheduler:
    """Chunk batches over a block pool. Every owner is in one of waiting, running, parked.

    `identity` is that of the model and its KV layout; without it there is no prefix cache.
    """

    def __init__(
        self,
        pool: BlockPool,
        order: PromptOrder,
        *,
        block_size: int,
        max_waiting: int,
        parked_fraction: float,
        identity: str | None = None,
    ) -> None:
        self.pool = pool
        self.order = order
        self._cache = PrefixCache(pool, block_size, identity, "prefill")
        self._max_waiting = max_waiting
        self._parked_limit = parked_fraction * pool.total
        self._turns = PromptQueue(order)
        self._active: dict[str, Sequence] = {}
        self._started: set[str] = set()
        self._parked: set[str] = set()
        self._leaving: set[str] = set()
        self._full = False

    @property
    def waiting(self) -> int:
        """Requests that hold no blocks yet."""
        return len(self._active) - len(self._started)

    @property
    def running(self) -> int:
        """Requests with part of their prompt computed or being computed."""
        return len(self._started)

    @property
    def parked(self) -> int:
        """Requests whose KV is complete and waits to be handed over."""
        return len(self._parked)

    @property
    def tokens_due(self) -> int:
        """Prompt tokens that wait or are being computed."""
        return self._turns.tokens_due

    @property
    def batch_tokens_due(self) -> int:
        """Those of the batch lane among them."""
        return self._turns.batch_tokens_due

    def places(self, now: float) -> dict[str, QueuePosition]:
        """Where the prompts that wait are in their lines."""
        return self._turns.places(now)

    def owners(self) -> frozenset[str]:
        """Everyone this scheduler answers for."""
        return frozenset(self._active) | self._parked | self._leaving

    def submit(self, sequence: Sequence, now: float) -> None:
        """Queue a prompt. PromptTooLong if it can never fit, Overloaded if the queue is full."""
        needed = self._cache.blocks_for(len(sequence.tokens))
        if needed > self.pool.total:
            raise PromptTooLong(
                f"the prompt needs {needed} KV blocks, the prefill pool has {self.pool.total}"
            )
        batch = sequence.lane == "batch"
        require_room(self.waiting, self._max_waiting, "prompts wait", batch=batch)
        self._active[sequence.owner] = sequence
        self._turns.add(sequence, now)

    def schedule(self, now: float) -> list[Span]:
        """The next pass; with others under way, one that should overtake them.

        Empty when nothing can run or nothing should overtake.
        """
        self._full = False
        spans = self._turns.take(now, self._admit)
        self._turns.begin(spans)
        return spans

    def advanced(self, spans: list[Span], seconds: float) -> None:
        """Note that a pass under way was computed for so long."""
        self._turns.advanced(spans, seconds)

    def wanted(self, spans: list[Span]) -> bool:
        """Whether anybody of a pass under way is still here."""
        return any(span.sequence.owner in self._active for span in spans)

    def complete(self, spans: list[Span]) -> list[Sequence]:
        """Note that a pass was computed; returns the sequences whose prompt is now whole.

        Those are parked: their blocks stay, leased, until `remove`.
        """
        self._end(spans, computed=True)
        finished = []
        for span in spans:
            sequence = span.sequence
            if sequence.owner not in self._active:
                continue
            sequence.computed += span.count
            self._cache.publish(sequence)
            if sequence.remaining == 0:
                self._forget(sequence.owner)
                self._parked.add(sequence.owner)
                self.pool.set_phase(sequence.owner, BlockPhase.LEASED)
                finished.append(sequence)
        return finished

    def abandon(self, spans: list[Span]) -> None:
        """Note that a pass has ended and computed nothing."""
        self._end(spans, computed=False)

    def remove(self, owner: str) -> None:
        """Forget a request and free its blocks, after the pass that uses them. Idempotent."""
        known = owner in self._active or owner in self._parked
        self._forget(owner)
        self._parked.discard(owner)
        if owner in self._turns.owners:
            if known:
                self._leaving.add(owner)
            return
        self.pool.release(owner)

    def leaving(self, owner: str) -> bool:
        """Whether a pass still writes to the blocks of a request that was removed."""
        return owner in self._leaving

    def _end(self, spans: list[Span], *, computed: bool) -> None:
        self._turns.end(spans, computed=computed)
        for span in spans:
            owner = span.sequence.owner
            if owner in self._leaving:
                self._leaving.discard(owner)
                self.pool.release(owner)

    def _forget(self, owner: str) -> None:
        self._active.pop(owner, None)
        self._started.discard(owner)
        self._turns.drop(owner)

    def _admit(self, owner: str) -> int:
        """Give a waiting request its blocks if there is room; how many tokens may run.

        Whoever finds no blocks holds back those behind it that need some too, but not those that
        have theirs: they are the ones that will free some.
        """
        sequence = self._active[owner]
        if owner not in self._started and not self._full:
            self._full = not self._start(sequence)
        return sequence.remaining if owner in self._started else 0

    def _start(self, sequence: Sequence) -> bool:
        if self.pool.counts().leased > self._parked_limit or not self._cache.start(sequence):
            return False
        self._started.add(sequence.owner)
        return True
