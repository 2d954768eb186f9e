"""A section of the benchmark of a GPU: rows within a time budget. A fault ends it alone."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Row = dict[str, Any]


class Rows(Protocol):
    """Takes rows; `GpuReport` writes each at once."""

    def row(self, section: str, /, **values: Any) -> None:
        """Add a row."""
        ...


@dataclass(frozen=True, slots=True)
class Section:
    """A section with the seconds that it may take.

    `run` gets the device and whether the run is dry. It yields rows as it measures them, or
    returns them.
    """

    name: str
    run: Callable[[torch.device, bool], Iterable[Row] | None]
    budget_s: float


def run_section(section: Section, device: torch.device, *, dry: bool, into: Rows) -> bool:
    """Run a section into the rows of its name; whether it came to its end.

    No row is begun behind the budget. A fault is a row in `faults`, and the next section goes on.
    """
    ends_s = time.monotonic() + section.budget_s
    try:
        for row in _rows(section, device, dry):
            into.row(section.name, **row)
            if time.monotonic() > ends_s:
                into.row("faults", section=section.name, error=f"over {section.budget_s:g} s")
                return False
    except Exception as error:
        # A fault must not lose the rest of a run.
        traceback.print_exc()
        error_name = type(error).__name__
        into.row("faults", section=section.name, error=f"{error_name}: {error}"[:500])
        return False
    return True


def _rows(section: Section, device: torch.device, dry: bool) -> Iterator[Row]:
    yield from section.run(device, dry) or ()
