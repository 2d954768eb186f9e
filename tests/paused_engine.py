"""An engine that computes a pass slice by slice, each slice only when a test lets it."""

from __future__ import annotations

import asyncio
import threading

from engine.types.sequence import SampledToken
from engine.types.urgency import Urgency

LAYERS = 4
_LONG_S = 30.0


class PausedPass:
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


class PausedEngine:
    """`slices` has the owners of every slice begun, in order; the rest counts calls."""

    def __init__(self, shared_cores=""):
        self.shared_cores = shared_cores
        self.slices = []
        self.cuts = self.halts = self.yields = 0
        self._entered = threading.Condition()
        self._permits = threading.Semaphore(0)
        self._free = threading.Event()

    def begin(self, spans, stored=None):
        return PausedPass(self, spans, stored)

    urgency = Urgency.NONE
    rows_ahead = 0

    def yield_cores(self):
        self.yields += 1

    def forward(self, spans):
        return [SampledToken(7) for _ in spans]

    def enter(self, owners):
        with self._entered:
            self.slices.append(owners)
            self._entered.notify_all()
        if not self._free.is_set():
            assert self._permits.acquire(timeout=_LONG_S)

    async def pause_in_slice(self, number):
        """Let slices through until that number, counted from 0, is under way, and pause in it."""
        async with asyncio.timeout(_LONG_S):
            while len(self.slices) <= number:
                before = len(self.slices)
                if before:
                    self._permits.release()
                await asyncio.to_thread(self._wait_for_slice, before)

    def _wait_for_slice(self, before):
        with self._entered:
            assert self._entered.wait_for(lambda: len(self.slices) > before, _LONG_S)

    def go_on(self):
        """Pause no more."""
        self._free.set()
        self._permits.release()
