"""A request in the decode scheduler, and where it is in its life there. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from engine.types.sequence import Sequence


class DecodeState(Enum):
    """See `decode_pool/scheduler.py`."""

    WAITING = "waiting"
    ARRIVING = "arriving"
    RUNNING = "running"
    PREEMPTED = "preempted"


@dataclass(slots=True)
class DecodeEntry:
    """Its sequence, when it came (by number and by the clock), and how often it lost its blocks."""

    sequence: Sequence
    arrival: int
    arrived_s: float = 0.0
    local: bool = False
    state: DecodeState = DecodeState.WAITING
    preemptions: int = 0

    @property
    def batch(self) -> bool:
        """Whether it is of the batch lane."""
        return self.sequence.lane == "batch"

    @property
    def place(self) -> tuple[bool, int]:
        """The smallest goes first, the largest gives way; batch work comes behind all other."""
        return self.batch, self.arrival

    @property
    def is_prompt(self) -> bool:
        """Whether a local one has not given its first token."""
        return self.local and not self.sequence.output_tokens


class DecodeEntries(dict[str, DecodeEntry]):
    """The requests in a scheduler, by owner."""

    def count(self, state: DecodeState) -> int:
        """How many are in that state."""
        return sum(entry.state is state for entry in self.values())

    def in_state(self, state: DecodeState) -> list[DecodeEntry]:
        """Those in that state, in order."""
        return in_order(entry for entry in self.values() if entry.state is state)

    def lost_before(self, entry: DecodeEntry) -> bool:
        """Whether somebody who lost its blocks goes before one that waits."""
        return any(entry.batch or not lost.batch for lost in self.in_state(DecodeState.PREEMPTED))


def in_order(entries: Iterable[DecodeEntry]) -> list[DecodeEntry]:
    """Who goes first to begin with."""
    return sorted(entries, key=lambda entry: entry.place)
