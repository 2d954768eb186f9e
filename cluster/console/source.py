"""What the console needs of its router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cluster.telemetry.requests.row import ChoiceRow
from cluster.telemetry.requests.store import RequestStore

Json = dict[str, Any]
ReplicaEnd = Literal["drain", "kill"]


@dataclass(frozen=True, slots=True)
class RunningView:
    """A request that runs in the router.

    `received_at` is in seconds since the epoch. `tokens` were sent so far, for all choices.
    `first_choice` makes the row of its first choice as far as it came; None without a first token.
    `moved` are the transfers of its KV that ended: replica, replica, and bytes. `token_times` has,
    for each choice that runs, when its tokens came (monotonic).
    """

    request_id: str
    tenant: str
    endpoint: str
    lane: str
    received_at: float
    ttft_s: float | None = None
    tokens: int = 0
    prompt_tokens: int | None = None
    waited_for: str | None = None
    prefill_replica: str = ""
    decode_replica: str = ""
    first_choice: Callable[[], ChoiceRow] | None = None
    moved: tuple[tuple[str, str, int], ...] = ()
    token_times: tuple[Sequence[float], ...] = ()


class ConsoleSource(Protocol):
    """The router, as the console sees it. `name` is the router's id."""

    name: str
    rows: RequestStore

    def running(self) -> list[RunningView]:
        """The requests that run."""
        ...

    def state(self) -> Json:
        """What may change at any time, by section; it waits for nothing."""
        ...

    async def cluster(self) -> Json:
        """What the directory says of the cluster; raises Unavailable."""
        ...

    def configuration(self) -> Json:
        """The configuration in force, without secrets."""
        ...


class ConsoleActions(Protocol):
    """What an operator may do from the console. Each raises a TandemError."""

    async def stop_request(self, request_id: str, tenant: str, operator: str) -> None:
        """End a request that runs in this router."""
        ...

    async def end_replica(self, replica: str, how: ReplicaEnd, operator: str) -> None:
        """Drain or kill a replica of a cluster of `tandem serve`."""
        ...
