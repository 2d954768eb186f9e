"""A request as placement sees it, and the plan for it. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from cluster.replica_record import ReplicaRecord
from engine.types.urgency import Urgency


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """The needs of a request, and the promises that it was given.

    - `prompt_tokens`: the prompt; `most_tokens` is prompt and answer of one choice.
    - `digests`: the digests of the prompt's full blocks.
    - `arrived_s`, `budget_s`: the arrival, and the seconds until the first token is due.
    - `itl_s`: the promised inter-token latency.
    - `batch`: the request is of the batch lane.
    - `key`: the same value when its `tenant` sends the request again.
    - `request_id`: for logs.
    - `size`: the characters of its text, by which it is judged before it is tokenised.
    - `scored_from`: the first prompt token that is scored. Such a request needs no decode replica.
    """

    prompt_tokens: int
    most_tokens: int
    digests: Sequence[bytes] = ()
    choices: int = 1
    arrived_s: float = 0.0
    budget_s: float = float("inf")
    itl_s: float = float("inf")
    batch: bool = False
    key: Hashable = None
    tenant: str = "default"
    request_id: str = ""
    scored_from: int | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """The replicas of one choice.

    `prefill` computes the prompt, of which it is expected to have `cached_tokens` cached. In a
    local pair one decode replica computes the prompt, too; `own_device` says that it takes nothing
    from prefill replicas. A `prefill_only` pair is one prefill replica, which stands for both.
    """

    prefill: ReplicaRecord
    decode: ReplicaRecord
    cached_tokens: int = 0
    prefill_only: bool = False
    own_device: bool = False

    @property
    def local(self) -> bool:
        """Whether the decode replica computes the prompt, so that no KV is handed over."""
        return self.prefill.id == self.decode.id and not self.prefill_only


@dataclass(frozen=True, slots=True)
class Forecast:
    """The prediction for a request on a pair of replicas.

    - `ttft_s`: seconds from the request's arrival to its first token.
    - `deadline_s`: the time at which the first token is due.
    - `alone_s`: the prompt's own computing, in seconds.
    - `queued_s`: what it adds to a queue, where prompts share passes; None: as `alone_s`.
    - `work_s`: the seconds of all work that waits on the prefill replica.
    - `feasible`: the prompt meets its deadline, and no waiting prompt misses its own for it.
    - `step_s`: the decode step with the request in the batch; `itl_s` is the most that it may be.
    - `blocks_shortfall`: choices for which the decode replicas have no KV blocks left.
    - `slots_shortfall`: choices for which they have no KV blocks or no batch slot left.
    - `prompts_shortfall`: prompts of the batch lane beyond the number that may wait there.
    - `requests`: requests on the decode replica.
    - `interval_s`: the mean time between two requests that end there.
    - `urgency`: the prompt's urgency beside streams on a shared device; else NONE.
    - `learned`: the prediction rests on observations, not on start values.
    """

    ttft_s: float
    deadline_s: float
    alone_s: float = 0.0
    queued_s: float | None = None
    work_s: float = 0.0
    feasible: bool = True
    step_s: float = 0.0
    itl_s: float = float("inf")
    blocks_shortfall: int = 0
    slots_shortfall: int = 0
    prompts_shortfall: int = 0
    requests: int = 0
    interval_s: float = 0.0
    urgency: Urgency = Urgency.NONE
    learned: bool = True

    @property
    def added_s(self) -> float:
        """The seconds that the prompt adds to a queue."""
        return self.alone_s if self.queued_s is None else self.queued_s


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """A pair of replicas, and the forecast for the request there."""

    pair: Pair
    forecast: Forecast


def one_of(request: PlacementRequest) -> PlacementRequest:
    """The request with one of its choices."""
    return request if request.choices == 1 else replace(request, choices=1)
