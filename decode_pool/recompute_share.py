"""The time for streams that are computed again, beside the steps of other streams. Pure."""

from __future__ import annotations


class RecomputeShare:
    """Gives the streams that stand still as much time as the steps take, whatever the ITL budget.

    So the tokens of the other streams come half as fast at worst, but for a layer. A slice has
    whole layers. The time that a slice leaves unused belongs to the next slice.
    """

    def __init__(self) -> None:
        self.slice_s = 0.0
        """The seconds that a slice may take now at least; 0 means a single layer."""

    def stepped(self, seconds: float) -> None:
        """Note the time of a step."""
        self.slice_s += seconds

    def computed(self, seconds: float) -> None:
        """Note the time of a slice."""
        self.slice_s = max(0.0, self.slice_s - seconds)

    def idle(self) -> None:
        """Note that no stream stands still."""
        self.slice_s = 0.0
