"""The first token of a request, as the console's charts and explanations count it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from cluster.console.source import RunningView
from cluster.telemetry.requests.row import ChoiceRow, RequestRow
from cluster.telemetry.requests.stages import stages_of

STAGES = ("admission", "failover", "prefill_queue", "prefill", "first_flush")
# Bound: a number that another router tells. So no sum of such numbers is infinite.
MOST_TOLD = 1e15
# The pools whose capacity ends a wait in the router.
_POOL_OF_WAIT = {
    **dict.fromkeys(("itl", "kv_blocks", "decode_batch"), "decode"),
    **dict.fromkeys(("ttft", "batch_prompts"), "prefill"),
}


@dataclass(frozen=True, slots=True)
class TtftSample:
    """One TTFT at `at` (seconds since the epoch), and its parts in the order of `STAGES`.

    `waited_for` is the reason of a wait in the router. `replica` computed the prompt, and `local`
    says that it was a decode replica. `decode_replica` generates. `lost` is the first replica that
    was lost before the token. `answer_tokens` are of a request that ended, for all its choices.
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
    lost: str = ""
    answer_tokens: int | None = None

    @classmethod
    def of_row(cls, row: RequestRow) -> Self | None:
        """The sample of a request's slowest choice; None where it got no token."""
        if row.slowest is None:
            return None
        named = row.endpoint, row.tenant, row.received_at
        tokens = row.prompt_tokens, row.completion_tokens
        return cls._of(row.slowest, *named, *tokens, row.waited_for)

    @classmethod
    def of_running(cls, view: RunningView) -> Self | None:
        """The sample of a request that runs; None before its first token."""
        if view.first_choice is None:
            return None
        named = view.endpoint, view.tenant, view.received_at
        return cls._of(view.first_choice(), *named, view.prompt_tokens, None, view.waited_for)

    @classmethod
    def _of(
        cls,
        choice: ChoiceRow,
        endpoint: str,
        tenant: str,
        received_at: float,
        prompt_tokens: int | None,
        answer_tokens: int | None,
        waited_for: str | None,
    ) -> Self | None:
        if choice.ttft_s is None:
            return None
        took = dict.fromkeys(STAGES, 0.0)
        for one in stages_of(choice):
            if one.stage in took and one.begin_s < choice.ttft_s:
                took[one.stage] += one.end_s - one.begin_s
        lost = (one.replica for one in choice.failover_spans if one.begin_s < choice.ttft_s)
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
            next(filter(None, lost), ""),
            answer_tokens,
        )

    @property
    def sound(self) -> bool:
        """Whether it can be counted: a router of another version may tell other stages."""
        tokens = self.prompt_tokens, self.answer_tokens or 0
        numbers = (self.at, self.ttft_s, *tokens, *self.stages)
        return len(self.stages) == len(STAGES) and all(abs(one) <= MOST_TOLD for one in numbers)

    @property
    def capped(self) -> bool:
        """Whether it waited for a cap of its tenant."""
        return self.waited_for.startswith("tenant_")

    @property
    def token_s(self) -> float | None:
        """Seconds of prefill for a prompt token; None where that is not known."""
        prefill_s = self.stages[STAGES.index("prefill")]
        return prefill_s / self.prompt_tokens if prefill_s and self.prompt_tokens else None

    def by_pool(self) -> dict[str, float]:
        """The TTFT in seconds by the part of the cluster that it was spent in, or waited for."""
        admission_s, failover_s, queue_s, prefill_s, flush_s = self.stages
        found = {self._own_pool: queue_s + prefill_s}
        waited = _POOL_OF_WAIT.get(self.waited_for, "router")
        lost = self._own_pool if self.lost else "router"
        for name, seconds in ((waited, admission_s), (lost, failover_s), ("router", flush_s)):
            found[name] = found.get(name, 0.0) + seconds
        return found

    def in_pool(self, pool: str) -> tuple[str, float] | None:
        """The replica of a pool that it was on, with the seconds there and of its wait for decode.

        A request that lost a replica counts for that one. A wait for prefill ends on any replica,
        so it counts for none.
        """
        admission_s, failover_s, queue_s, prefill_s, _ = self.stages
        here_s = queue_s + prefill_s + (failover_s if self.lost else 0.0)
        if pool == "prefill":
            return None if self.local else (self.lost or self.replica, here_s)
        if pool != "decode":
            return None
        waited_s = admission_s if _POOL_OF_WAIT.get(self.waited_for) == "decode" else 0.0
        if self.local:
            return self.lost or self.decode_replica, waited_s + here_s
        return self.decode_replica, waited_s

    @property
    def _own_pool(self) -> str:
        """The pool that computes its prompt."""
        return "decode" if self.local else "prefill"
