"""An engine whose passes are computed slice by slice, each only when a test lets it."""

from __future__ import annotations

import asyncio
import threading

from engine.types.sequence import SampledToken
from engine.types.urgency import Urgency

LAYERS = 4
_LONG_S = 30.0


class HeldPass:
    """A pass of `LAYERS` slices of a layer each."""

    def __init__(self, engine, spans, stored):
        self.spans = spans
        self.layers_done = 0
        self._engine = engine
        self._stored = stored

    def advance(self, for_s=None):
        self._engine.enter([span.sequence.owner for span in self.spans])
        self.layers_done += 1
        if self.layers_done < LAYERS:
            return None
        if self._stored is not None:
            self._stored()
        return [SampledToken(7) if span.samples else None for span in self.spans]

    def cut(self):
        self._engine.cuts += 1

    def halt(self):
        self._engine.halts += 1


class HeldEngine:
    """`slices` has the owners of every slice begun, in order; the rest counts calls."""

    def __init__(self, shared_cores=""):
        self.shared_cores = shared_cores
        self.slices = []
        self.cuts = self.halts = self.yields = 0
        self._permits = threading.Semaphore(0)
        self._free = threading.Event()

    def begin(self, spans, stored=None):
        return HeldPass(self, spans, stored)

    urgency = Urgency.NONE

    def yield_cores(self):
        self.yields += 1

    def forward(self, spans):
        return [SampledToken(7) for _ in spans]

    def enter(self, owners):
        self.slices.append(owners)
        if not self._free.is_set():
            assert self._permits.acquire(timeout=_LONG_S)

    async def hold_slice(self, number):
        """Let slices through until that one, counted from 0, is under way, and keep it there."""
        async with asyncio.timeout(_LONG_S):
            while len(self.slices) <= number:
                before = len(self.slices)
                if before:
                    self._permits.release()
                while len(self.slices) == before:
                    await asyncio.sleep(0.001)

    def let_go(self):
        """From now on nothing is held."""
        self._free.set()
        self._permits.release()
