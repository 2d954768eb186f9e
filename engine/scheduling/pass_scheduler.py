"""The common part of both pools' schedulers: passes over prompts, and blocks in use. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod

from engine.kv.block_pool import BlockPool
from engine.scheduling.prompt_order import PromptOrder
from engine.scheduling.prompt_queue import PromptQueue, QueuePosition
from engine.types.sequence import Span


class PassScheduler(ABC):
    """Prompts in a queue, passes over them, and blocks that outlive their request.

    A pass may still write to the blocks of a request that was removed. The pool gets these blocks
    back when the pass ends; until then the request is *leaving*.
    """

    def __init__(self, pool: BlockPool, order: PromptOrder) -> None:
        self.pool = pool
        self.order = order
        self._prompts = PromptQueue(order)
        self._leaving: set[str] = set()

    @property
    def tokens_due(self) -> int:
        """Prompt tokens that wait or are being computed."""
        return self._prompts.tokens_due

    @property
    def batch_tokens_due(self) -> int:
        """The part of `tokens_due` that belongs to the batch lane."""
        return self._prompts.batch_tokens_due

    def queue_positions(self, now: float) -> dict[str, QueuePosition]:
        """The queue position of each waiting prompt, by owner."""
        return self._prompts.positions(now)

    def advanced(self, spans: list[Span], seconds: float, alone_s: float | None = None) -> None:
        """As `PromptQueue.advanced`."""
        self._prompts.advanced(spans, seconds, alone_s)

    def abandon(self, spans: list[Span]) -> None:
        """Note that a step or a pass has ended and computed nothing."""
        self._end(spans, computed=False)

    def leaving(self, owner: str) -> bool:
        """Whether a step or a pass still writes to the blocks of a request that was removed."""
        return owner in self._leaving

    @abstractmethod
    def wanted(self, spans: list[Span]) -> bool:
        """Whether any request of a pass is still here."""

    @abstractmethod
    def remove(self, owner: str) -> None:
        """Forget a request and free its blocks, after the pass that uses them. Idempotent."""

    def _end(self, spans: list[Span], *, computed: bool) -> None:
        self._prompts.end(spans, computed=computed)
        for span in spans:
            owner = span.sequence.owner
            if owner in self._leaving and not self._is_in_use(owner):
                self._leaving.discard(owner)
                self.pool.release(owner)

    @abstractmethod
    def _is_in_use(self, owner: str) -> bool:
        """Whether another step or pass still writes to the owner's blocks."""
