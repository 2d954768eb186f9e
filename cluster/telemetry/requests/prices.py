"""The cost of a request, by the prices of replicas and the time that it used. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cluster.telemetry.requests.row import ChoiceRow

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of one replica of each pool for an hour; 0 where it is not known."""

    prefill: float = 0.0
    decode: float = 0.0

    @property
    def known(self) -> bool:
        """Whether there is a price at all."""
        return bool(self.prefill or self.decode)

    def cost_of(self, choices: Iterable[ChoiceRow]) -> float:
        """The cost of these choices. A replica that waits for work costs no request.

        A replica's seconds are shared, so that they cost no more than their price.
        """
        return sum(map(self._of_choice, choices))

    def _of_choice(self, choice: ChoiceRow) -> float:
        computed_by = self.decode if choice.route == "local" else self.prefill
        prompt = computed_by * (choice.prefill_share_s or 0.0)
        return (prompt + self.decode * (choice.share_s or 0.0)) / _HOUR_S
