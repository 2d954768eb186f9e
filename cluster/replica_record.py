"""The record that each replica keeps in the directory, and the members of the cluster. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from engine.scheduling.pass_cost import PassCosts, PassTiming

ReplicaRole = Literal["prefill", "decode", "both", "router"]
Pool = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The load of a replica or router now: requests, and blocks by state.

    `prompt_tokens_due` wait or are being computed. `prompt_tokens_per_s` is the recent speed with
    the steps beside it, None before the first prompt. A pass over prompts takes `pass_s`, and
    `pass_token_s` for each of its tokens, of which there are at most `chunk_tokens`; prompts share
    passes of `shared_tokens`. The requests may need `blocks_promised`. A `stalled` engine has work
    and completes no step.

    Of a replica that decodes: each step gives `streams` requests a token, of which `batch_limit`
    may run. A step usually takes `step_s`; `itl_s` is the longest time between two steps beside
    prompts. `batch_*` are those of the batch lane.

    Of a router: `unserved_prefill` and `unserved_decode` are the requests that it refused just now,
    or that wait long, because that pool has no capacity. `unserved_batch` are such requests of the
    batch lane. All prefill replicas together take `queued_prefill_s` for the prompts that wait in
    the router.
    """

    waiting: int = 0
    running: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_used: int = 0
    blocks_leased: int = 0
    blocks_quarantined: int = 0
    blocks_orphaned: int = 0
    block_size: int = 0
    context_tokens: int = 0
    prompt_tokens_due: int = 0
    blocks_promised: int = 0
    prompt_tokens_per_s: float | None = None
    pass_s: float | None = None
    pass_token_s: float = 0.0
    shared_tokens: int = 0
    chunk_tokens: int = 0
    streams: int = 0
    batch_limit: int = 0
    step_s: float | None = None
    itl_s: float | None = None
    unserved_prefill: int = 0
    unserved_decode: int = 0
    unserved_batch: int = 0
    queued_prefill_s: float = 0.0
    batch_tokens_due: int = 0
    batch_blocks: int = 0
    batch_streams: int = 0
    stalled: bool = False

    @property
    def passes(self) -> PassCosts | None:
        """The costs of passes over prompts; None before the first pass."""
        if self.pass_s is None or self.shared_tokens < 1 or self.chunk_tokens < 1:
            return None
        timing = PassTiming(self.pass_s, self.pass_token_s)
        return PassCosts(timing, self.shared_tokens, self.chunk_tokens)

    @property
    def used(self) -> int:
        """Requests and their blocks; 0 when there is nothing to do."""
        return self.waiting + self.running + self.blocks_used


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """One replica. `address` is the host:port on which it listens; of a router that of gRPC.

    `generation` rises from one life to the next (a start time in nanoseconds); `started_at` is
    seconds since the epoch; `home` is the role that it was started with. Replicas of one
    `model_identity` serve the same weights; KV goes only between those of one `kv_identity`.
    `config` is the version of its configuration; `start_s` are the stages of its start. A `leaving`
    replica gets work only if no other replica can do it. `http` is a router's address for HTTP, and
    `peer` the one for questions of other routers, "" in a version that answers none.
    Replicas of one `device` compute on the same cores or GPU; "" is not known.
    """

    id: str
    role: ReplicaRole
    address: str
    generation: int
    model_identity: str = ""
    started_at: float = 0.0
    load: ReplicaLoad = field(default_factory=ReplicaLoad)
    home: ReplicaRole | None = None
    kv_identity: str = ""
    start_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    leaving: bool = False
    config: str = ""
    http: str = ""
    device: str = ""
    peer: str = ""

    def serves(self, role: ReplicaRole) -> bool:
        """Whether this replica takes work of that role; a replica of role `both` takes either."""
        return self.role == role or (self.role == "both" and role in get_args(Pool))

    def to_json(self) -> str:
        """The record as it is stored."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> ReplicaRecord:
        """Read a record; unknown fields are ignored. Raises ValueError if it is bad."""
        try:
            data = json.loads(text)
            load = _known(ReplicaLoad, data.get("load") or {})
            record = cls(**{**_known(cls, data), "load": ReplicaLoad(**load)})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a replica record: {error}") from None
        if record.role not in get_args(ReplicaRole):
            raise ValueError(f"not a replica record: role {record.role!r}")
        return record


def served(records: Iterable[ReplicaRecord]) -> set[Pool]:
    """The pools in which any of these replicas works."""
    return {pool for record in records for pool in get_args(Pool) if record.serves(pool)}


def whole(records: Iterable[ReplicaRecord], pools: Collection[Pool] = get_args(Pool)) -> bool:
    """Whether replicas that stay serve all of these pools with one KV layout."""
    staying: dict[str, list[ReplicaRecord]] = {}
    for record in records:
        if not record.leaving:
            staying.setdefault(record.kv_identity, []).append(record)
    found = [served(group) for group in staying.values()]
    return any(present and present.issuperset(pools) for present in found)


@dataclass(frozen=True, slots=True)
class Census:
    """One reading of the directory: the live records, and the ids of replicas that left.

    `born` differs where the directory lost its data and began anew; None before any lease.
    """

    members: tuple[ReplicaRecord, ...] = ()
    left: frozenset[str] = frozenset()
    born: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of one reading of the directory."""

    joined: tuple[ReplicaRecord, ...] = ()
    lost: tuple[ReplicaRecord, ...] = ()


class Roster:
    """The members as last known, kept through an outage of the directory.

    When the directory comes back, or began anew between two readings, leases have run out although
    their replicas live. So a replica that was known before stays for `grace_s` more, which is time
    enough to renew. A replica that left on purpose does not stay.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._members: dict[str, ReplicaRecord] = {}
        self._born: str | None = None
        self._forgiving_until: float | None = None

    def members(self, role: ReplicaRole | None = None) -> list[ReplicaRecord]:
        """The members that take work of that role, or all, ordered by id."""
        return [one for one in self._members.values() if role is None or one.serves(role)]

    def get(self, replica_id: str) -> ReplicaRecord | None:
        """One member by id."""
        return self._members.get(replica_id)

    def unreadable(self, now: float) -> None:
        """Note that the directory did not answer. The known members stay."""
        self._forgiving_until = now + self._grace_s

    def update(self, census: Census, now: float) -> Change:
        """Take a reading of the directory; returns the changes."""
        before, after = self._members, {record.id: record for record in census.members}
        stayed = {name: record for name, record in before.items() if name not in census.left}
        anew = bool(before) and census.born != self._born
        # All gone at once: the machine slept, which is more likely than so many deaths.
        asleep = len(stayed) > 1 and not after and self._forgiving_until is None
        if anew or asleep:
            self.unreadable(now)
        self._born = census.born
        if self._forgiving_until is not None:
            if now < self._forgiving_until:
                after = {**stayed, **after}
            else:
                self._forgiving_until = None
        self._members = dict(sorted(after.items()))
        return Change(joined=_absent(after, before), lost=_absent(before, after))


def _absent(
    lives: Mapping[str, ReplicaRecord], others: Mapping[str, ReplicaRecord]
) -> tuple[ReplicaRecord, ...]:
    """The lives that are not among `others`; a new generation is another life."""
    return tuple(
        record
        for key, record in lives.items()
        if key not in others or others[key].generation != record.generation
    )


def _known(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(cls)}
    return {key: value for key, value in data.items() if key in names}
