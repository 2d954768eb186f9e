"""What a router tells the console of another one: counts, rows, and the requests that run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from cluster.console.counts import (
    Counts,
    EndedCount,
    ItlCount,
    Logged,
    MovedCount,
    RefusedCount,
    ServedCount,
    TenantRefusedCount,
)
from cluster.console.rise.lengths import TextLength
from cluster.console.row_view import named
from cluster.console.running_itl import prominence
from cluster.console.source import Json
from cluster.console.time_series import WINDOW_S
from cluster.console.ttft_sample import MOST_TOLD, TtftSample
from cluster.gateway.sse import dump
from cluster.telemetry.requests.row_order import end
from engine.errors import Unavailable

# Bound: running requests that one event of the feed has.
MOST_RUNNING = 60


@dataclass(frozen=True, slots=True)
class RunningNews:
    """The requests that run in a router, and the rows of the most prominent ones."""

    count: int = 0
    waiting: int = 0
    rows: tuple[Json, ...] = ()
    stalled: int = 0


@dataclass(frozen=True, slots=True)
class PeerNews:
    """What happened in a router up to the numbers `counts_at` and `rows_at`.

    With `more`, counts behind that number are there already. `skipped` rows are not among `rows`.
    `tenants` are as `FairShare.shown` has them. What happened in the last `observed_s` is known. A
    version that does not tell a field leaves it out.
    """

    counts_at: int
    rows_at: int
    more: bool = False
    first_tokens: tuple[TtftSample, ...] = ()
    answers: tuple[TextLength, ...] = ()
    ended: tuple[EndedCount, ...] = ()
    itl: tuple[ItlCount, ...] = ()
    refused: tuple[RefusedCount, ...] = ()
    served: tuple[ServedCount, ...] = ()
    tenant_refused: tuple[TenantRefusedCount, ...] = ()
    moved: tuple[MovedCount, ...] = ()
    rows: tuple[Json, ...] = ()
    skipped: int = 0
    running: RunningNews = field(default_factory=RunningNews)
    tenants: Json = field(default_factory=dict)
    observed_s: float = WINDOW_S

    def to_json(self) -> bytes:
        """The news as another router reads them."""
        return _NEWS.dump_json(self)

    @classmethod
    def from_json(cls, data: bytes) -> PeerNews:
        """Read news; unknown fields are ignored. Raises Unavailable if they are bad."""
        try:
            news = _NEWS.validate_json(data)
        except ValidationError:
            raise Unavailable("its answer cannot be read") from None
        try:
            _try(news)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise Unavailable("its answer lacks what this router reads") from None
        return news


_NEWS = TypeAdapter(PeerNews)


def _try(news: PeerNews) -> None:
    """Read the news once, so that they cannot end the feed later."""
    groups = (news.ended, news.itl, news.refused, news.served, news.tenant_refused, news.moved)
    numbers = [each for group in groups for one in group for each in _numbers(one)]
    numbers += [each for one in news.answers for each in (one.at, one.tokens)]
    numbers += [end(row) for row in news.rows]
    numbers += [each for row in news.running.rows for each in _prominence(row, 0.0)]
    numbers += [news.running.count, news.running.waiting, news.running.stalled, news.skipped]
    numbers.append(news.observed_s)
    for tenant in news.tenants.values():
        uses = [each for use in tenant["caps"].values() for each in _of_cap(use)]
        numbers += [tenant["served"], tenant["waiting_requests"], *uses]
    if not (all(map(_is_bounded, numbers)) and all(one.sound for one in news.first_tokens)):
        raise ValueError("a number is too large or none, or a stage is missing")
    for row in (*news.rows, *news.running.rows):
        check_row(row)
    dump({"tenants": news.tenants})


def check_row(row: Json) -> None:
    """Read what pages show of a row of another router; raises ValueError where it is bad."""
    for name in ("request_id", "endpoint", "tenant"):
        if not isinstance(row.get(name, ""), str):
            raise ValueError(f"{name} is no text")
    if not row.get("request_id"):
        raise ValueError("a row without a request")
    dump(row)


def _is_bounded(number: float) -> bool:
    """Whether a number can be counted; raises TypeError for what is no number."""
    return abs(number) <= MOST_TOLD


def _of_cap(use: Json) -> Iterator[float]:
    """The numbers of a tenant's use of a cap; its limits are None where it has no cap."""
    yield use["used"]
    for limit in (use["here"], use["cap"]):
        if limit is not None:
            yield limit


def _numbers(count: Iterable[object]) -> Iterator[float]:
    """The numbers of a count, and those of the tuples in it."""
    for one in count:
        if isinstance(one, int | float):
            yield one
        elif isinstance(one, tuple):
            yield from _numbers(one)


def by_kind(logged: list[Logged]) -> Json:
    """Logged counts as the fields of `PeerNews`."""
    found: dict[str, list[object]] = {}
    for kind, one in logged:
        found.setdefault(kind, []).append(one)
    return {kind: tuple(counts) for kind, counts in found.items()}


@dataclass(frozen=True, slots=True)
class PeersTold:
    """What the other routers told since the last look, and what of theirs runs, by router."""

    news: tuple[tuple[str, PeerNews], ...] = ()
    running: Mapping[str, RunningNews] = field(default_factory=dict)

    def count(self, counts: Counts, now: float) -> None:
        """Add what happened to these counts; `now` is monotonic."""
        for _, one in self.news:
            for sample in one.first_tokens:
                counts.samples.append(sample)
                counts.series.first_token(sample.at, sample.endpoint, sample.ttft_s)
            counts.answers.extend(one.answers)
            for at, endpoint, itl_s, longest_s, failed in one.ended:
                counts.series.ended(at, endpoint, itl_s, longest_s, failed=failed)
            for itl in one.itl:
                counts.series.itl(*itl)
            for refused in one.refused:
                counts.series.refused(*refused)
            for served in one.served:
                counts.series.served(*served)
            for tenant_refused in one.tenant_refused:
                counts.series.tenant_refused(*tenant_refused)
            for moved in one.moved:
                counts.links.moved(now, *moved)

    def rows(self) -> Iterator[Json]:
        """The rows of requests that ended, each with its router."""
        for router, one in self.news:
            yield from (named(row, router) for row in one.rows)

    @property
    def observed_s(self) -> float:
        """The longest time of which a router told what happened; 0 without news."""
        return max((one.observed_s for _, one in self.news), default=0.0)

    @property
    def skipped(self) -> int:
        """Rows that no router told."""
        return sum(one.skipped for _, one in self.news)

    def beside(self, own: Json, now: float) -> Json:
        """The running requests of this router and of the others, the most prominent first."""
        if not self.running:
            return own
        rows = [*own["rows"]]
        for router, one in self.running.items():
            rows += [named(row, router) for row in one.rows]
        return {
            "count": own["count"] + sum(one.count for one in self.running.values()),
            "waiting": own["waiting"] + sum(one.waiting for one in self.running.values()),
            "stalled": own["stalled"] + sum(one.stalled for one in self.running.values()),
            "rows": sorted(rows, key=lambda row: _prominence(row, now))[:MOST_RUNNING],
        }


class RecentRows(deque[Json]):
    """The last rows of other routers, for pages that open."""

    def __init__(self, most: int) -> None:
        super().__init__(maxlen=most)
        self._most = most

    def beside(self, own: list[Json]) -> list[Json]:
        """The last rows of all routers, in the order of their ends."""
        return sorted([*own, *self], key=end)[-self._most :] if self else own


def merged_tenants(own: Json, others: list[Json]) -> Json:
    """Tenants with their use and limits summed over the routers.

    What a tenant was served counts over all routers in each of them, so the most known holds.
    """
    found = {name: _copied(one) for name, one in own.items()}
    for name, one in ((name, one) for tenants in others for name, one in tenants.items()):
        if name not in found:
            found[name] = _copied(one)
            continue
        known = found[name]
        known["served"] = max(known["served"], one["served"])
        known["waiting_requests"] += one["waiting_requests"]
        for cap, use in one["caps"].items():
            sums = known["caps"].setdefault(cap, {"used": 0, "here": None, "cap": use["cap"]})
            sums["used"] += use["used"]
            if sums["here"] is not None and use["here"] is not None:
                sums["here"] += use["here"]
    return found


def _copied(tenant: Json) -> Json:
    return tenant | {"caps": {name: dict(one) for name, one in tenant["caps"].items()}}


def _prominence(row: Json, now: float) -> tuple[float, float]:
    """As the model orders running requests."""
    return prominence(now, row["received_at"], row["ttft_s"], row.get("stall_s", 0.0))
