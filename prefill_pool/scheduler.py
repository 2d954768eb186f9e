"""Schedules the prompt tokens of a prefill replica. Pure: no clock, no I/O.

A request's life here:

    submit ─▶ waiting ──(blocks for the whole prompt)──▶ running ──(last chunk)──▶ parked ─▶ gone
                 └────────────── remove, at any point ───────────┴───────────────────┘

A prompt starts behind its cached prefix, and the blocks that a chunk fills are named at once.

`engine/scheduling/prompt_order.py` says which prompt is next. A more urgent prompt may overtake a
pass between two layers. No prompt is started while too many blocks are parked.
"""

from __future__ import annotations

from engine.errors import PromptTooLong
from engine.kv.block_pool import BlockPhase, BlockPool
from engine.scheduling.pass_scheduler import PassScheduler
from engine.scheduling.prefix_cache import PrefixCache
from engine.scheduling.prompt_order import PromptOrder
from engine.types.lane_quota import require_capacity
from engine.types.sequence import Sequence, Span


class PrefillScheduler(PassScheduler):
    """Passes of prompt chunks over a block pool. Each request waits, runs or is parked.

    `identity` names the model and its KV layout; without it there is no prefix cache.
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
        super().__init__(pool, order)
        self._cache = PrefixCache(pool, block_size, identity, "prefill")
        self._max_waiting = max_waiting
        self._parked_limit = parked_fraction * pool.total
        self._active: dict[str, Sequence] = {}
        self._started: set[str] = set()
        self._parked: set[str] = set()
        self._out_of_blocks = False

    @property
    def waiting(self) -> int:
        """The number of requests without blocks."""
        return len(self._active) - len(self._started)

    @property
    def running(self) -> int:
        """The number of requests whose prompt is being computed."""
        return len(self._started)

    @property
    def parked(self) -> int:
        """The number of requests with complete KV that waits to be handed over."""
        return len(self._parked)

    def owners(self) -> frozenset[str]:
        """The owners of all blocks of this scheduler."""
        return frozenset(self._active) | self._parked | self._leaving

    def submit(self, sequence: Sequence, now: float) -> None:
        """Queue a prompt; PromptTooLong for the whole pool, Overloaded if too many wait."""
        needed = self._cache.blocks_for(len(sequence.tokens))
        if needed > self.pool.total:
            raise PromptTooLong(
                f"the prompt is too long: it needs {needed} KV blocks, "
                f"the prefill pool has {self.pool.total}"
            )
        batch = sequence.lane == "batch"
        require_capacity(self.waiting, self._max_waiting, "prompts wait", batch=batch)
        self._active[sequence.owner] = sequence
        self._prompts.add(sequence, now)

    def schedule(self, now: float) -> list[Span]:
        """The next pass; with passes under way, a pass that should overtake them.

        It is empty if no prompt can run, or none should overtake.
        """
        self._out_of_blocks = False
        spans = self._prompts.take(now, self._admit)
        self._prompts.begin(spans)
        return spans

    def wanted(self, spans: list[Span]) -> bool:
        """Whether any request of a pass is still here."""
        return any(span.sequence.owner in self._active for span in spans)

    def complete(self, spans: list[Span]) -> list[Sequence]:
        """Note that a pass was computed; returns the sequences whose prompt is now whole.

        These sequences are parked: their blocks stay, leased, until `remove`.
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

    def remove(self, owner: str) -> None:
        """Forget a request and free its blocks, after the pass that uses them. Idempotent."""
        known = owner in self._active or owner in self._parked
        self._forget(owner)
        self._parked.discard(owner)
        if owner in self._prompts.owners:
            if known:
                self._leaving.add(owner)
            return
        self.pool.release(owner)

    def _is_in_use(self, owner: str) -> bool:
        return owner in self._prompts.owners

    def _forget(self, owner: str) -> None:
        self._active.pop(owner, None)
        self._started.discard(owner)
        self._prompts.drop(owner)

    def _admit(self, owner: str) -> int:
        """Give a waiting request its blocks if there are enough; returns the tokens that may run.

        A prompt that finds no blocks holds back the prompts behind it that need blocks too. It does
        not hold back prompts that have their blocks, because these prompts will free some.
        """
        sequence = self._active[owner]
        if owner not in self._started and not self._out_of_blocks:
            self._out_of_blocks = not self._start(sequence)
        return sequence.remaining if owner in self._started else 0

    def _start(self, sequence: Sequence) -> bool:
        if self.pool.counts().leased > self._parked_limit or not self._cache.start(sequence):
            return False
        self._started.add(sequence.owner)
        return True
