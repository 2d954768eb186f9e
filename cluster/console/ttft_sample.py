"""The first token of a request, as the console's charts and explanations count it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Self

from cluster.console.source import RunningView
from cluster.telemetry.requests.row import ChoiceRow, RequestRow
from cluster.telemetry.requests.stages import stages_of

STAGES = ("admission", "failover", "prefill_queue", "prefill", "first_flush")
# The pools whose capacity ends a wait in the router.
_POOL_OF_WAIT = {
    **dict.fromkeys(("itl", "kv_blocks", "decode_batch"), "decode"),
    **dict.fromkeys(("ttft", "batch_prompts"), "prefill"),
}


@dataclass(frozen=True, slots=True)
class TtftSample:
    """One TTFT at `at` (seconds since the epoch), and its parts in the order of `STAGES`.

    `waited_for` is the reason of a wait in the router. `replica` computed the prompt, and `local`
    says that it was a decode replica. `decode_replica` generates.
    """

    at: float
    endpoint: str
    tenant: str
    replica: str
    ttft_s: float
    stages: tuple[float, ...]
    prompt_tokens: int = 0
    waited_for: str = ""
    local: bool = False
    decode_replica: str = ""

    @classmethod
    def of_row(cls, row: RequestRow) -> Self | None:
        """The sample of a request's slowest choice; None where it got no token."""
        if row.slowest is None:
            return None
        named = row.endpoint, row.tenant, row.received_at
        return cls._of(row.slowest, *named, row.prompt_tokens, row.waited_for)

    @classmethod
    def of_running(cls, view: RunningView) -> Self | None:
        """The sample of a request that runs; None before its first token."""
        if view.first_choice is None:
            return None
        named = view.endpoint, view.tenant, view.received_at
        return cls._of(view.first_choice(), *named, view.prompt_tokens, view.waited_for)

    @classmethod
    def _of(
        cls,
        choice: ChoiceRow,
        endpoint: str,
        tenant: str,
        received_at: float,
        prompt_tokens: int | None,
        waited_for: str | None,
    ) -> Self | None:
        if choice.ttft_s is None:
            return None
        took = dict.fromkeys(STAGES, 0.0)
        for one in stages_of(choice):
            if one.stage in took and one.begin_s < choice.ttft_s:
                took[one.stage] += one.end_s - one.begin_s
        return cls(
            received_at + choice.ttft_s,
            endpoint,
            tenant,
            choice.prefill_replica,
            choice.ttft_s,
            tuple(took.values()),
            prompt_tokens or 0,
            waited_for or "",
            choice.route == "local",
            choice.decode_replica,
        )

    @property
    def sound(self) -> bool:
        """Whether it can be counted: a router of another version may tell other stages."""
        numbers = (self.at, self.ttft_s, self.prompt_tokens, *self.stages)
        return len(self.stages) == len(STAGES) and all(map(isfinite, numbers))

    @property
    def token_s(self) -> float | None:
        """Seconds of prefill for a prompt token; None where that is not known."""
        prefill_s = self.stages[STAGES.index("prefill")]
        return prefill_s / self.prompt_tokens if prefill_s and self.prompt_tokens else None

    def by_pool(self) -> dict[str, float]:
        """The TTFT in seconds by the part of the cluster that it was spent in, or waited for."""
        admission_s, failover_s, queue_s, prefill_s, flush_s = self.stages
        pool = "decode" if self.local else "prefill"
        found = {pool: queue_s + prefill_s}
        waited = _POOL_OF_WAIT.get(self.waited_for, "router")
        for name, seconds in ((waited, admission_s), ("router", failover_s + flush_s)):
            found[name] = found.get(name, 0.0) + seconds
        return found

    def in_pool(self, pool: str) -> tuple[str, float] | None:
        """The replica of a pool that it was on, with the seconds there and of its wait for decode.

        A wait for prefill ends on any replica, so it counts for none.
        """
        admission_s, _, queue_s, prefill_s, _ = self.stages
        if pool == "prefill":
            return None if self.local else (self.replica, queue_s + prefill_s)
        if pool != "decode":
            return None
        waited_s = admission_s if _POOL_OF_WAIT.get(self.waited_for) == "decode" else 0.0
        return self.decode_replica, waited_s + (queue_s + prefill_s if self.local else 0.0)
