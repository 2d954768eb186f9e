"""The clock of rows: seconds since the epoch as this router's process counts them.

It begins with the wall clock and then is monotonic. So times of rows can be compared whatever
happens to the wall clock, as where NTP steps it. After a step, or on a host that slept, they are
off the wall clock by so much until the router starts anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_READINGS = 8


def epoch_s(
    wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
) -> float:
    """From monotonic time to seconds since the epoch.

    A process that is held up between the readings of both clocks finds too little. So the largest
    of several differences counts.
    """
    return max(wall() - monotonic() for _ in range(_READINGS))


EPOCH_S = epoch_s()


def row_clock() -> float:
    """Now, as the rows of this router count."""
    return time.monotonic() + EPOCH_S
