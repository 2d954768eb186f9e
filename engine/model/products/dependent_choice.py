"""Whether kernels are launched while the ones before them end: where that is right and faster."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from engine.errors import first_line
from engine.kernels.dependent_launch import DependentLaunch
from engine.model.products.few_rows import Timer

log = logging.getLogger(__name__)

Step = Callable[[], torch.Tensor]

# A kernel that did not wait for the one before it would change the answer of a run.
_RUNS = 10


def choose_dependent(
    dependent: DependentLaunch, chain: Step, record: Callable[[Step], Step], seconds: Timer
) -> None:
    """Record a chain of kernels both ways; turn dependent launch on if it wins with equal bits."""
    try:
        plain = record(chain)
        expected, plain_s = plain().clone(), seconds(plain)
        dependent.on = True
        early = record(chain)
        same = all(torch.equal(early(), expected) for _ in range(_RUNS))
        early_s = seconds(early)
    except Exception as error:  # of a compiler, a launch, or a recording
        dependent.on = False
        log.warning("no dependent launch: %s", first_line(error))
        return
    dependent.on = same and early_s < plain_s
    if not same:
        log.warning("no dependent launch: it changed the answer of a chain of kernels")
        return
    told = "on" if dependent.on else "off"
    log.info("dependent launch %s: %.1f of %.1f us", told, early_s * 1e6, plain_s * 1e6)
