"""What the console needs of its router."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from cluster.telemetry.requests.row import ChoiceRow
from cluster.telemetry.requests.store import RequestStore, RowFilter

if TYPE_CHECKING:
    from cluster.console.peer_news import PeersTold

Json = dict[str, Any]
ReplicaEnd = Literal["drain", "kill"]


class RunningView(NamedTuple):
    """A request that runs in the router. Each tick makes all of them, and a tuple is made fast.

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


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of requests that ended, as the console shows them.

    `silent` names the routers whose rows are missing, and says why.
    """

    rows: Sequence[Json]
    silent: Mapping[str, str]


def unanswered(silent: Mapping[str, str]) -> str:
    """The end of a sentence on what was not found, with the routers that did not answer."""
    return "".join(f"; no answer of {name}: {reason}" for name, reason in sorted(silent.items()))


class ModelSource(Protocol):
    """The router, as the model behind the feed sees it. `name` is the router's id."""

    name: str
    rows: RequestStore

    def running(self) -> list[RunningView]:
        """The requests that run in this router."""
        ...

    def peers(self) -> PeersTold:
        """What the other routers told since the last call; it waits for nothing."""
        ...

    def state(self) -> Json:
        """What may change at any time, by section; it waits for nothing."""
        ...

    async def cluster(self) -> Json:
        """What the directory says of the cluster; raises Unavailable."""
        ...


class ConsoleSource(ModelSource, Protocol):
    """The routers, as the console sees them from the router `name`."""

    async def listed(self, wanted: RowFilter) -> Listing:
        """The rows that the filter chooses, of all routers."""
        ...

    def configuration(self) -> Json:
        """The configuration in force, without secrets."""
        ...

    async def close(self) -> None:
        """Ask no other router any more."""
        ...


class ConsoleActions(Protocol):
    """What an operator may do from the console. Each raises a TandemError."""

    async def stop_request(self, request_id: str, tenant: str, operator: str) -> None:
        """End a request that runs in this router or in another one."""
        ...

    async def end_replica(self, replica: str, how: ReplicaEnd, operator: str) -> None:
        """Drain or kill a replica of a cluster of `tandem serve`."""
        ...
