"""Seals of requests to the launcher. A process that can merely write to Redis can make none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.discovery.timed_seal import TimedSeal
from protos.wire.secret import ClusterSecret


@dataclass(frozen=True, slots=True)
class RequestSeal:
    """Seals requests to one run of `tandem serve`; `launcher` is that run's name.

    A seal holds for MOST_AGE_S, so that a recorded request cannot be written again later.
    """

    secret: ClusterSecret
    launcher: str
    clock: Callable[[], float] = time.time

    def of_stop(self) -> str:
        """The seal of a stop request."""
        return self._timed_seal.of("stop", self.launcher)

    def is_stop(self, seal: str) -> bool:
        """Whether this is the seal of a stop request."""
        return self._timed_seal.fits(seal, "stop", self.launcher)

    def of_rollout(self, content: str) -> str:
        """The seal of a rollout with that content."""
        return self._timed_seal.of("rollout", self.launcher, content)

    def is_rollout(self, seal: str, content: str) -> bool:
        """Whether this is the seal of a rollout with that content."""
        return self._timed_seal.fits(seal, "rollout", self.launcher, content)

    @property
    def _timed_seal(self) -> TimedSeal:
        return TimedSeal(self.secret, self.clock)
