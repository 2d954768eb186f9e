"""Signatures of requests to the launcher: who can merely write to Redis cannot make one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.discovery.timed_seal import TimedSeal
from protos.wire.secret import ClusterSecret


@dataclass(frozen=True, slots=True)
class RequestSeal:
    """Signs requests to one run of `tandem serve`; `launcher` is that run's name.

    A signature holds for an hour, so that a recorded request cannot be written again later.
    """

    secret: ClusterSecret
    launcher: str
    clock: Callable[[], float] = time.time

    def of_stop(self) -> str:
        """The signature of a stop request."""
        return self._seal.of("stop", self.launcher)

    def is_stop(self, signature: str) -> bool:
        """Whether this is the signature of a stop request."""
        return self._seal.fits(signature, "stop", self.launcher)

    def of_rollout(self, content: str) -> str:
        """The signature of a rollout with that content."""
        return self._seal.of("rollout", self.launcher, content)

    def is_rollout(self, signature: str, content: str) -> bool:
        """Whether this is the signature of a rollout with that content."""
        return self._seal.fits(signature, "rollout", self.launcher, content)

    @property
    def _seal(self) -> TimedSeal:
        return TimedSeal(self.secret, self.clock)
