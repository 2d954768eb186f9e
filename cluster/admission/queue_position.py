"""Tells waiting requests their queue position and how long they will wait. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.api import Progress, Stage
from cluster.placement.types import PlacementRequest

# Promise: the time between two messages to one client.
TELL_S = 0.5
# Bound: messages at one poll, because each costs a plan.
_AT_ONCE = 4

Tell = Callable[[Progress], None]
# The predicted wait of a request behind so many others, in seconds.
Predict = Callable[[PlacementRequest, int, float], float | None]


@dataclass(slots=True)
class QueuePositionListener:
    """A request that asked to be told, and when the next message is due."""

    request: PlacementRequest
    tell: Tell
    due_s: float


class QueuePositionNotifier:
    """Tells listeners their positions. The listener with the oldest message comes first."""

    def __init__(self, predict: Predict, starting: Callable[[PlacementRequest], bool]) -> None:
        self._predict = predict
        self._starting = starting

    def listener(self, request: PlacementRequest, tell: Tell, now: float) -> QueuePositionListener:
        """A listener for a request that begins to wait."""
        return QueuePositionListener(request, tell, now + TELL_S)

    def tell(self, queue: Sequence[QueuePositionListener | None], now: float) -> None:
        """Tell the listeners that are due. `queue` is in order, None for a request without one."""
        due = [(one, before) for before, one in enumerate(queue) if one and one.due_s <= now]
        due.sort(key=lambda entry: entry[0].due_s)
        for one, before in due[:_AT_ONCE]:
            one.due_s = now + TELL_S
            wait_s = self._predict(one.request, before, now)
            stage: Stage = "starting" if self._starting(one.request) else "queued"
            one.tell(Progress(0, stage, 0, one.request.prompt_tokens, before + 1, wait_s))
