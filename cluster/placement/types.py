"""What a request needs, and what is planned for it. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from cluster.replica_record import ReplicaRecord
from engine.types.urgency import Urgency


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What a request needs and was promised.

    `arrived_s` and `budget_s` give the time of its first token; `digests` are those of the
    prompt's full blocks; `key` is the same when its `tenant` sends it again; `request_id` is for
    logs. Where its own tokens are scored, those from `scored_from` on, no decode replica is needed.
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


@dataclass(frozen=True, slots=True)
class Pair:
    """The replicas of one choice; `cached_tokens` of the prompt are expected where it is computed.

    A `local` pair is one decode replica that computes the prompt itself, a `prefill_only` one a
    prefill replica alone; it stands for both. `own_device`: prefill replicas lose nothing by it.
    """

    prefill: ReplicaRecord
    decode: ReplicaRecord
    cached_tokens: int = 0
    prefill_only: bool = False
    own_device: bool = False

    @property
    def local(self) -> bool:
        """Whether decode computes all, and there is nothing to hand over."""
        return self.prefill.id == self.decode.id and not self.prefill_only


@dataclass(frozen=True, slots=True)
class Forecast:
    """The prediction for a request on a pair of replicas.

    - `ttft_s`: seconds from the request's arrival to its first token.
    - `deadline_s`: the time at which the first token is due.
    - `alone_s`: the prompt's own computing, in seconds.
    - `work_s`: the seconds of all work that waits on the prefill replica.
    - `feasible`: the prompt meets its deadline, and no waiting prompt misses its own for it.
    - `step_s`: the decode step with the request in the batch; `itl_s` is the most that it may be.
    - `blocks_shortfall`: choices for which the decode replicas have no KV blocks left.
    - `slots_shortfall`: choices for which they have no KV blocks or no batch slot left.
    - `prompts_shortfall`: prompts of the batch lane beyond the number that may wait there.
    - `requests`: requests on the decode replica.
    - `interval_s`: the mean time between two requests that end there.
    - `urgency`: what else is served meanwhile.
    - `learned`: the prediction rests on observations, not on start values.
    """

    ttft_s: float
    deadline_s: float
    alone_s: float = 0.0
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


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """A pair, and what is predicted of it."""

    pair: Pair
    forecast: Forecast


def one_of(ask: PlacementRequest) -> PlacementRequest:
    """The share of one of its choices."""
    return ask if ask.choices == 1 else replace(ask, choices=1)
