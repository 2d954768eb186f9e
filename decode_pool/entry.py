"""A request in the decode scheduler, and its state there. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Literal

from engine.types.sequence import Sequence

_rank = attrgetter("rank")


class DecodeState(Enum):
    """See `decode_pool/scheduler.py`."""

    WAITING = "waiting"
    ARRIVING = "arriving"
    RUNNING = "running"
    PREEMPTED = "preempted"


# What an offer of KV waits for: free blocks, a free slot in the batch, the next batch, or requests
# before it that find no room themselves. An offer that is taken at once waits for nothing.
DecodeWait = Literal["nothing", "blocks", "slots", "batch", "earlier"]


@dataclass(slots=True)
class DecodeEntry:
    """A request's sequence, arrival (by number and by the clock, in seconds), and state.

    `local`: this replica computes the prompt. `preemptions` counts how often the request lost its
    blocks. `waited_for` is what it waited for last. `rank` is the sort key: the smallest goes
    first, the largest is preempted; batch is last.
    """

    sequence: Sequence
    sequence_no: int
    arrived_s: float = 0.0
    local: bool = False
    state: DecodeState = DecodeState.WAITING
    preemptions: int = 0
    waited_for: DecodeWait = "nothing"
    rank: tuple[bool, int] = field(init=False)

    def __post_init__(self) -> None:
        self.rank = self.batch, self.sequence_no

    @property
    def batch(self) -> bool:
        """Whether the request is of the batch lane."""
        return self.sequence.lane == "batch"

    @property
    def is_prompt(self) -> bool:
        """Whether a local request has no first token yet."""
        return self.local and not self.sequence.output_tokens


class DecodeEntries(dict[str, DecodeEntry]):
    """The requests in a scheduler, by owner."""

    def count(self, *states: DecodeState) -> int:
        """The number of requests in one of these states."""
        return sum(entry.state in states for entry in self.values())

    def in_state(self, state: DecodeState) -> list[DecodeEntry]:
        """The requests in that state, by rank."""
        return by_rank(entry for entry in self.values() if entry.state is state)

    def preempted_before(self, entry: DecodeEntry) -> bool:
        """Whether a preempted request goes before this waiting request."""
        return any(entry.batch or not lost.batch for lost in self.in_state(DecodeState.PREEMPTED))


def by_rank(entries: Iterable[DecodeEntry]) -> list[DecodeEntry]:
    """The entries in the order in which they get blocks."""
    return sorted(entries, key=_rank)
