"""A request in the decode scheduler, and where it is in its life there. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from engine.sequence import Sequence


class State(Enum):
    """See `decode_pool/scheduler.py`."""

    WAITING = "waiting"
    ARRIVING = "arriving"
    RUNNING = "running"
    PREEMPTED = "preempted"


@dataclass(slots=True)
class Entry:
    """Its sequence, when it came (by number and by the clock), and how often it lost its blocks."""

    sequence: Sequence
    arrival: int
    arrived_s: float = 0.0
    local: bool = False
    state: State = State.WAITING
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
