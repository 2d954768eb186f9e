"""When a decode replica computes a prompt itself, beside its streams. Pure.

Where it has nearly all of it cached, as after a turn of a chat, that is less work than anywhere
else. Otherwise it is a matter of what it computes with. On a device of its own it is lent a short
prompt that it is done with before its turn would come on a prefill replica. On a device that it
shares with one, two prompts at once, or a prompt and a step, take longer than one after the other:
there it is lent a short one while it has streams and no prefill replica computes (decisions 18 and
19).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from cluster.placement.edf_forecast import EdfForecast
from cluster.replica_record import ReplicaRecord
from engine.types.urgency import Urgency

# How much longer a prompt takes on a device where another replica begins to compute, at most.
_AT_MOST_SLOWER = 2.0


class Device(Enum):
    """What a decode replica computes with: its own, or shared with prefill replicas."""

    OWN = auto()
    SHARED_IDLE = auto()  # none of them computes, or is about to
    SHARED_BUSY = auto()


@dataclass(frozen=True, slots=True)
class Computing:
    """What becomes of a prompt, asked about at `now`, on a replica that could compute it.

    `missing` tokens of it are not cached there, and it takes `alone_s` at that `urgency`; it is due
    at `deadline_s`, and is to be there `margin_s` before.
    """

    record: ReplicaRecord
    cached: int
    missing: int
    alone_s: float
    now: float
    deadline_s: float
    margin_s: float
    forecast: EdfForecast
    urgency: Urgency = Urgency.NONE

    @property
    def cost_s(self) -> float:
        """When it ends, and for how long others wait for it."""
        return self.forecast.ends_s + self.forecast.behind * self.alone_s

    def in_time(self, slower: float) -> bool:
        """Whether it is, though it and all before it took that many times as long."""
        ends_s = self.now + slower * (self.forecast.ends_s - self.now)
        return ends_s <= self.deadline_s - self.margin_s


def is_lent(here: Computing, elsewhere: Computing, device: Device, requests: int) -> bool:
    """Whether a decode replica with so many requests computes it, rather than the one elsewhere."""
    if device is Device.OWN:
        # Done here before it would have begun there.
        sooner = here.forecast.ends_s < elsewhere.forecast.ends_s - elsewhere.alone_s
        return here.cached > elsewhere.cached or (sooner and here.forecast.feasible)
    if here.cached > elsewhere.cached and here.cached >= here.missing:
        return True
    if device is Device.SHARED_BUSY or not requests:
        return False
    # There its steps would be in the way; one with another device is disturbed by nobody.
    same = here.record.device == elsewhere.record.device and here.cached >= elsewhere.cached
    # It waits for no longer than it takes, so that whoever waits is in time where it is itself.
    soon = here.forecast.work_s <= here.alone_s
    return same and soon and here.in_time(_AT_MOST_SLOWER)
