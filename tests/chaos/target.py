"""What the chaos needs of a cluster that it breaks; there are two, with Ray and without."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from tests.chaos.faults import Fault

# Hears that a request is in a state; the fields name the request and its replicas.
OnState = Callable[[str, dict[str, str]], None]


class Target(Protocol):
    """A cluster. `faults` come in turn, at one of `moments`: the states of a request."""

    faults: Sequence[Fault]
    moments: Sequence[str]
    model: torch.nn.Module

    def listen(self, on_state: OnState) -> None:
        """Tell of the states of requests from now on."""
        ...

    async def calm(self) -> None:
        """Note what the cluster holds where nothing runs."""
        ...

    async def strike(self, fault: Fault, places: Mapping[str, str], rng: random.Random) -> bool:
        """Inject a fault, let it last, and heal; returns whether it was delivered.

        `places` are the members of a request by role; they are the victims.
        """
        ...

    async def leaked(self) -> str:
        """What is left although nothing runs; "" for nothing."""
        ...
