"""Whether an engine stands still: it has work, and completed no step within its deadline. Pure."""

from __future__ import annotations

# Bound: an observer that did not look for so long stood still itself, and proves nothing.
_OWN_PAUSE_S = 5.0


class StepDeadline:
    """The deadline of an engine's next step, slice or other piece of work.

    `overdue` is asked several times a second. Times are seconds of any one clock.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._since: float | None = None
        self._looked: float | None = None

    def progressed(self, now: float) -> None:
        """Note that a piece of work ended."""
        if self._since is not None:
            self._since = now

    def overdue(self, has_work: bool, now: float) -> bool:
        """Whether there was work for longer than the deadline, and no piece of it ended.

        The time in which nobody asked does not count where it is long, because then the whole
        process stood still.
        """
        slept = self._looked is not None and now - self._looked > _OWN_PAUSE_S
        self._looked = now
        if not has_work:
            self._since = None
            return False
        if self._since is None or slept:
            self._since = now
        return now - self._since > self.timeout_s
