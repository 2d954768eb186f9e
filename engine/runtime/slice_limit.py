"""The end of a slice of a pass: by the host's clock, or by the time that a device takes.

A device that launches its work runs behind the host. The host launches a short layer more slowly
than the device computes it, and a long layer much faster. So the time of launching says little. The
device gets a mark every few layers. The times between passed marks say how long a layer takes, and
a passed mark says that the KV before it is stored.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.device import DeviceMark

# Tuned: a mark costs the host some microseconds, and a layer takes 300 or more.
LAYERS_PER_MARK = 2
# A bound: so many marks may be ahead of the device. A slice that is cut waits for these layers, and
# one mark would leave the device without work while the host launches.
MOST_MARKS = 2


class SliceLimit(Protocol):
    """Says after each part of a pass, a layer for example, whether the slice goes on.

    The leading `layers_done` layers have stored their KV, as far as it is known.
    """

    layers_done: int

    def begin(self, for_s: float | None) -> None:
        """Begin a slice of about `for_s` seconds; None: without a limit."""
        ...

    def goes_on(self, layers: int) -> bool:
        """Note one more part, and the layers up to it; False where the next would be late."""
        ...


class HostLimit:
    """Parts that are done when they return; the next part takes as long as the last."""

    def __init__(self) -> None:
        self.layers_done = 0
        self._until_s: float | None = None
        self._began_s = 0.0

    def begin(self, for_s: float | None) -> None:
        """See SliceLimit."""
        self._began_s = time.monotonic()
        self._until_s = None if for_s is None else self._began_s + for_s

    def goes_on(self, layers: int) -> bool:
        """See SliceLimit."""
        self.layers_done = layers
        if self._until_s is None:
            return True
        began_s, self._began_s = self._began_s, time.monotonic()
        return 2 * self._began_s - began_s <= self._until_s


@dataclass(frozen=True, slots=True)
class _Marked:
    """A mark, the parts since the mark before it, and the layers up to it."""

    mark: DeviceMark
    parts: int
    layers: int


class DeviceLimit:
    """Parts that are launched; at most `MOST_MARKS` marks are ahead of the device.

    `record` makes a mark behind what was launched. A slice without a limit has no marks.
    """

    def __init__(self, record: Callable[[], DeviceMark]) -> None:
        self.layers_done = 0
        self._record = record
        self._ahead: deque[_Marked] = deque()
        self._unmarked = self._launched = 0
        self._part_s: float | None = None
        self._last: DeviceMark | None = None  # the last that was passed
        self._left_s = 0.0

    def begin(self, for_s: float | None) -> None:
        """See SliceLimit. The device must have done all work of the slice before."""
        self._ahead.clear()
        self._unmarked, self.layers_done = 0, self._launched
        self._last = None if for_s is None else self._record()
        self._left_s = for_s or 0.0

    def goes_on(self, layers: int) -> bool:
        """See SliceLimit; waits while too many marks are ahead.

        The first part of a pass is awaited, because nothing is known of its time.
        """
        self._launched = layers
        if self._last is None:
            return True
        self._unmarked += 1
        if self._part_s is None or self._unmarked >= LAYERS_PER_MARK:
            self._ahead.append(_Marked(self._record(), self._unmarked, layers))
            self._unmarked = 0
        while self._ahead and (self._must_wait or self._ahead[0].mark.passed()):
            self._pass(self._ahead.popleft(), self._last)
        under_way = self._unmarked + sum(one.parts for one in self._ahead)
        return (under_way + 1) * (self._part_s or 0.0) < self._left_s

    @property
    def _must_wait(self) -> bool:
        return self._part_s is None or len(self._ahead) > MOST_MARKS

    def _pass(self, one: _Marked, before: DeviceMark) -> None:
        one.mark.wait()
        took_s = one.mark.seconds_since(before)
        self._part_s = took_s / one.parts
        self._left_s -= took_s
        self._last = one.mark
        self.layers_done = one.layers
