"""The progress of `tandem serve` on the terminal: each stage once, with its seconds."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

_REASON = re.compile(r"^engine\.errors\.(\w+): (.+)$", re.MULTILINE)
_FINAL = ("ConfigError", "InvalidRequest", "UnsupportedModel")


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """One deployment as Serve reports it."""

    name: str
    wanted: int
    running: int
    status: str
    message: str = ""

    @property
    def complete(self) -> bool:
        """Whether all desired replicas run."""
        return self.running >= self.wanted

    @property
    def failure(self) -> str | None:
        """Why this deployment will not come up, in one line; None while it may."""
        reason = failure_reason(self.message)
        hopeless = self.status == "DEPLOY_FAILED" or is_final(self.message)
        return f"{self.name}: {reason}" if hopeless and reason else None


class StartupProgress:
    """Prints stages with the seconds since the start."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began_s = time.monotonic()
        self._shown: dict[str, int] = {}

    def say(self, line: str = "") -> None:
        """Print one line. A closed terminal raises nothing, so that the cluster can still end."""
        with contextlib.suppress(OSError):
            print(line, file=self._out, flush=True)

    def stage(self, name: str) -> None:
        """Print a finished stage."""
        self.say(f"{time.monotonic() - self._began_s:6.1f} s  {name}")

    def replicas(self, states: Mapping[str, DeploymentState]) -> None:
        """Print the deployments whose number of running replicas changed."""
        for name, state in states.items():
            if state.running != self._shown.get(name, 0):
                self._shown[name] = state.running
                self.stage(f"{name} {state.running}/{state.wanted}")


def failure_reason(message: str) -> str | None:
    """The error in a deployment's status message, without its traceback."""
    if found := _REASON.findall(message):
        return str(found[-1][1])
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else None


def is_final(message: str) -> bool:
    """Whether another try would end in the same error."""
    return any(name in _FINAL for name, _ in _REASON.findall(message))
