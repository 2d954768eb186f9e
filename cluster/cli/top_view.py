"""What `tandem top` shows, from a router's status and rows. Pure."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from cluster.cli.requests import WAITS, queue_waits
from cluster.cli.status_table import health_of, speed_of
from cluster.console.words import NO_RISE
from cluster.display_text import known_time, long_time, plain
from cluster.telemetry.requests.itl import rank
from protos import router_pb2

if TYPE_CHECKING:
    from cluster.client.admin_client import ListedRequests

_SLOWEST = 8
# The width of a sentence, in characters.
_TEXT_WIDTH = 90
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TopTable:
    """A table: its title, its columns, and its rows. The first `text_columns` hold text."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    text_columns: int = 1


def sections_of(
    status: router_pb2.StatusResponse, found: ListedRequests, since_s: float
) -> list[TopTable]:
    """All tables; `found` is of the requests that arrived in the last `since_s` seconds.

    Where all routers are younger than that, a rate is over the time that they tell. Routers whose
    requests are missing have a table of their own.
    """
    over_s = found.observed_s or since_s
    tables = [
        _pools(status),
        _replicas(status),
        _endpoints(found.figures, over_s),
        _tenants(found.tenants, over_s),
        _slowest(found.rows),
    ]
    if found.silent:
        tables.insert(0, _silent(found.silent))
    return [_rises(found.rises), *tables]


def _silent(silent: Mapping[str, str]) -> TopTable:
    lines = [(plain(name), plain(reason)) for name, reason in sorted(silent.items())]
    return TopTable("routers whose requests are missing here", ("router", "reason"), lines, 2)


def _rises(rises: Sequence[Row]) -> TopTable:
    lines = []
    for rise in rises:
        endpoint = plain(rise["endpoint"])
        begin, end = (time.strftime("%X", time.localtime(rise[at])) for at in ("begin", "end"))
        told = {"cause": rise["words"]}
        if "advice" in rise:  # a router of an older version gives none
            told |= {"what to do": rise["advice"], "guide": rise["runbook"]}
        told |= {"when": f"{begin} to {end}", **rise["facts"]}
        for name, text in told.items():
            for part in wrap(plain(text), _TEXT_WIDTH, break_on_hyphens=False):
                lines.append((endpoint, name, part))
                endpoint = name = ""
    if not lines:
        lines.append(("all", "cause", NO_RISE))
    return TopTable("why first tokens got slow", ("endpoint", "", "what is known"), lines, 3)


def _pools(status: router_pb2.StatusResponse) -> TopTable:
    by_role = defaultdict[str, list[router_pb2.ReplicaStatus]](list)
    for replica in status.replicas:
        by_role[replica.role].append(replica)
    lines = []
    for role, replicas in sorted(by_role.items()):
        healthy = sum(one.healthy and not one.leaving for one in replicas)
        waiting, running = (
            str(sum(getattr(one, name) for one in replicas)) for name in ("waiting", "running")
        )
        kv = _used(
            sum(one.blocks.used for one in replicas), sum(one.blocks.total for one in replicas)
        )
        lines.append((role, f"{healthy} of {len(replicas)}", waiting, running, kv))
    lines += [
        (f"{plain(name)}: replicas are missing", "-", "-", "-", "-") for name in status.missing
    ]
    return TopTable("pools", ("pool", "healthy", "waiting", "running", "KV used"), lines)


def _replicas(status: router_pb2.StatusResponse) -> TopTable:
    lines: list[tuple[str, ...]] = []
    for one in sorted(status.replicas, key=lambda each: (each.role, each.id)):
        counts = str(one.waiting), str(one.running)
        kv = _used(one.blocks.used, one.blocks.total), _used(one.blocks.cached, one.blocks.total)
        speed = map(known_time, speed_of(one))
        lines.append((one.role, plain(one.id), health_of(one), *counts, *kv, *speed))
    lines += [
        (plain(one.role), plain(one.id), f"starts: {plain(one.progress)}", *("-",) * 6)
        for one in status.starting
    ]
    columns = (
        *("role", "replica", "health", "waiting", "running", "KV used", "cached"),
        *("1k prompt tokens", "step"),
    )
    return TopTable("replicas", columns, lines, 3)


def _endpoints(figures: Iterable[router_pb2.EndpointFigures], over_s: float) -> TopTable:
    lines = [
        (
            *(plain(one.endpoint), f"{one.requests / over_s:.1f}"),
            *(str(one.refused), str(one.failed)),
            *_quantiles(one.ttft_s),
            *_quantiles(one.itl_p95_s),
        )
        for one in figures
    ]
    columns = (
        *("endpoint", "requests/s", "refused", "failed"),
        *("TTFT p50", "TTFT p95", "ITL p95, median", "p95"),
    )
    return TopTable(f"endpoints, last {long_time(over_s)}", columns, lines)


def _tenants(tenants: Sequence[router_pb2.TenantFigures], over_s: float) -> TopTable:
    whole = sum(one.tokens for one in tenants)
    lines = [
        (
            f"{one.others} others" if one.others else plain(one.tenant) or "-",
            *map(str, (one.requests, one.refused, one.running, one.waiting)),
            f"{one.tokens / whole:.0%}" if whole else "-",
            f"{one.tokens / over_s:,.0f}",
            plain(one.cap),
        )
        for one in tenants
    ]
    columns = (
        *("tenant", "requests", "refused", "running", "waiting"),
        *("share", "tokens/s", "nearest cap"),
    )
    return TopTable(f"tenants, last {long_time(over_s)}", columns, lines)


def _slowest(rows: Sequence[Row]) -> TopTable:
    lines: list[tuple[str, ...]] = []
    known = [row for row in rows if "ttft_s" in row]
    slowest = sorted(known, key=lambda one: -float(one["ttft_s"]))[:_SLOWEST]
    for row in slowest:
        named = (row["request_id"], row["endpoint"], row.get("tenant", "-"))
        stages = map(known_time, (row["ttft_s"], *queue_waits(row), row.get("prefill_s")))
        waited = row.get("waited_for", "-")
        where = (row.get("prefill_replica", "-"), waited)
        lines.append((*map(plain, (*named, *where)), *stages))
    columns: tuple[str, ...] = (
        *("request", "endpoint", "tenant", "prefill replica", "waited for"),
        *("TTFT", *WAITS, "prefill"),
    )
    texts = 5
    if any("router" in row for row in slowest):
        routers = (plain(row.get("router", "-")) for row in slowest)
        columns, texts = ("router", *columns), texts + 1
        lines = [(router, *line) for router, line in zip(routers, lines, strict=True)]
    return TopTable("slowest first tokens (tandem explain REQUEST)", columns, lines, texts)


def _quantiles(seconds: Iterable[float]) -> tuple[str, str]:
    values = sorted(seconds)
    if not values:
        return "-", "-"
    return known_time(rank(values, 0.5)), known_time(rank(values, 0.95))


def _used(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
