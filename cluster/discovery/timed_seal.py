"""Seals of the values that members store in Redis: an HMAC of the cluster's secret, with its time.

    <seconds since the epoch>.<HMAC-SHA256 in hexadecimal>

A process that can merely write to Redis can make no seal. It can store a recorded value again, but
only until the seal is too old.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from protos.wire.secret import ClusterSecret

# Bound: how old a seal may be. Far longer than clocks of two hosts differ.
MOST_AGE_S = 3600.0


@dataclass(frozen=True, slots=True)
class TimedSeal:
    """Seals texts, and checks seals; `clock` gives seconds since the epoch."""

    secret: ClusterSecret
    clock: Callable[[], float] = time.time

    def of(self, subject: str, *texts: str) -> str:
        """The seal of these texts at this time. A seal for one subject is none for another."""
        sealed_at = str(int(self.clock()))
        return f"{sealed_at}.{self.secret.sign(subject, *_parts(sealed_at, *texts)).hex()}"

    def fits(self, seal: str, subject: str, *texts: str) -> bool:
        """Whether a member sealed these texts, at most MOST_AGE_S ago by the clocks of both."""
        sealed_at, _, signature = seal.partition(".")
        try:
            signed, parts = bytes.fromhex(signature), _parts(sealed_at, *texts)
        except ValueError:
            return False
        if not self.secret.verify(signed, subject, *parts):
            return False
        return abs(self.clock() - int(sealed_at)) <= MOST_AGE_S


def _parts(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]
