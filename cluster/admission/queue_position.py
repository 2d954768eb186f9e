"""Telling those who wait for admission where they are in the line, and for how long yet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.api import Progress, Stage
from cluster.placement.types import PlacementRequest

# How often somebody hears, and how many at once: each costs a plan.
TELL_S = 0.5
_AT_ONCE = 4

Tell = Callable[[Progress], None]
# The predicted wait of a request behind so many others.
Predict = Callable[[PlacementRequest, int, float], float | None]


@dataclass(slots=True)
class QueuePositionListener:
    """Who asked to hear, and when it is due to."""

    ask: PlacementRequest
    tell: Tell
    due_s: float


class QueuePositionNotifier:
    """Tells listeners, those first who heard nothing for longest."""

    def __init__(self, predict: Predict, starting: Callable[[PlacementRequest], bool]) -> None:
        self._predict = predict
        self._starting = starting

    def listener(self, ask: PlacementRequest, tell: Tell, now: float) -> QueuePositionListener:
        """Somebody who begins to wait."""
        return QueuePositionListener(ask, tell, now + TELL_S)

    def tell(self, line: Sequence[QueuePositionListener | None], now: float) -> None:
        """Look at the line, the next one first; None is one who did not ask."""
        due = [(one, place) for place, one in enumerate(line) if one and one.due_s <= now]
        due.sort(key=lambda entry: entry[0].due_s)
        for one, before in due[:_AT_ONCE]:
            one.due_s = now + TELL_S
            wait_s = self._predict(one.ask, before, now)
            stage: Stage = "starting" if self._starting(one.ask) else "queued"
            one.tell(Progress(0, stage, 0, one.ask.prompt_tokens, before + 1, wait_s))
