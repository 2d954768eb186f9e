"""A decode step that is launched, and awaited after the next step was launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.errors import Internal
from engine.types.sequence import Outcome


class Launched(Protocol):
    """A step under way on the device; see `engine.sampling.drawn_tokens.DrawnTokens`."""

    def read(self) -> Sequence[Outcome]:
        """Wait for the step; its results, in the order of its spans."""
        ...


class StepLaunch:
    """A step that the engine's thread launches, and later waits for."""

    def __init__(self, launch: Callable[[], Launched]) -> None:
        self._launch = launch
        self._launched: Launched | None = None
        self._error: Exception | None = None

    def begin(self) -> None:
        """Launch the step; an error is raised by `outcomes`."""
        try:
            self._launched = self._launch()
        except Exception as error:
            self._error = error

    def outcomes(self) -> list[Outcome]:
        """Wait for the step, and not for steps behind it; its results."""
        if self._error is not None:
            raise self._error
        if self._launched is None:
            raise Internal("a step was awaited before its launch")
        return [*self._launched.read()]
