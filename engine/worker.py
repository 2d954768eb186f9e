"""Runs engine steps on a thread of their own, one at a time, so that the event loop never waits."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from engine.blocks import BlockPool
from engine.sequence import Outcome, Span


class Steps(Protocol):
    """What computes spans: the engine, or a stand-in for it in tests."""

    def forward(self, spans: list[Span]) -> list[Outcome]:
        """Compute the spans; see `Engine.forward`."""
        ...

    def clear(self, blocks: list[int]) -> None:
        """Overwrite blocks with zeros."""
        ...


class EngineWorker:
    """One thread in front of one engine; both loops of a replica share it."""

    def __init__(self, engine: Steps) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    async def step(self, spans: list[Span]) -> list[Outcome]:
        """Compute the spans. Once begun a step is never cut short, even when this is cancelled."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._thread, self._engine.forward, spans)
        return await asyncio.shield(running)

    async def scrub(self, pool: BlockPool) -> None:
        """Clear the blocks that a faulty request left; before every step, as NaNs would spread."""
        dirty = pool.take_dirty()
        if dirty:
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(self._thread, self._engine.clear, dirty))
            pool.cleaned(dirty)

    def close(self) -> None:
        """Let the step in progress end and take no more."""
        self._thread.shutdown(wait=True, cancel_futures=True)
