"""The state behind the console's feed: charts, explanations, links and requests.

It reads the router's request log and the requests that run. A first token and a transfer are
counted once: while the request runs, or else when it has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from cluster.console.counts import Counts
from cluster.console.peer_news import MOST_RUNNING, PeersTold, RecentRows
from cluster.console.rise.lengths import TextLength
from cluster.console.rise.ttft_rise import rises
from cluster.console.row_view import row_view, running_view
from cluster.console.running_itl import RunningItl, evenly, prominence
from cluster.console.source import Json, ModelSource, RunningView
from cluster.console.time_series import STEP_S, WINDOW_S
from cluster.console.ttft_sample import TtftSample
from cluster.console.words import NO_RISE, REASON_NAMES, STAGE_NAMES
from cluster.telemetry.requests.row import RequestRow
from cluster.telemetry.requests.row_clock import row_clock

# Bound: the rows of this router in one event, and in one answer to another router.
MOST_ROWS = 40
# Bound: values that stand for the ITL of all requests of an endpoint at one time.
_MOST_ITL = 25
# Rows that a page begins with, and the first answer to another router.
FIRST_ROWS = 100
_Key = tuple[str, str]


@dataclass(slots=True)
class _Counted:
    """What of a running request was counted: its first token, so many transfers, and its ITL."""

    first_token: bool = False
    transfers: int = 0
    itl: RunningItl = field(default_factory=RunningItl)


@dataclass(slots=True)
class _Sections:
    """The sections as the pages have them. Of `replicas` only what changed is sent."""

    known: Json = field(default_factory=dict)

    def changes(self, sections: Json) -> Json:
        changed = {name: one for name, one in sections.items() if self.known.get(name) != one}
        if "replicas" in changed:
            before, after = self.known.get("replicas", {}), sections["replicas"]
            news = {key: one for key, one in after.items() if before.get(key) != one}
            changed["replicas"] = news | {key: None for key in before if key not in after}
        self.known = {**self.known, **sections}
        return changed


class ConsoleModel:
    """What every page shows; made once for all of them. `clock` is that of the rows.

    `counts` takes what is counted of this router and of what its source tells of others.
    """

    def __init__(
        self,
        source: ModelSource,
        clock: Callable[[], float] = row_clock,
        counts: Counts | None = None,
    ) -> None:
        self._source = source
        self._clock = clock
        self._counts = counts or Counts()
        self._series = self._counts.series
        self._samples = self._counts.samples
        self._answers = self._counts.answers
        self._links = self._counts.links
        self._peer_rows = RecentRows(FIRST_ROWS)
        self._counted: dict[_Key, _Counted] = {}
        self._last = 0
        self._since = source.rows.since
        self._sections = _Sections()
        self._cluster: Json = {}
        self._rises: list[Json] = []

    @property
    def since(self) -> float:
        """The time from which on all requests were counted, on the clock of the rows."""
        return self._since

    async def catch_up(self) -> None:
        """Count the rows that came while nobody looked, on a thread, since that may take long."""
        # The event loop adds rows meanwhile. So they are taken here, and none is counted twice.
        before, rows = self._last, self._source.rows.after(self._last)
        self._last = self._source.rows.last
        if self._last - before > len(rows):
            self._since = self._source.rows.since
        await asyncio.to_thread(self._count_late, rows, self._source.running())
        self._links.forget()

    def explain(self) -> None:
        """Say anew why TTFT rose; call it on a thread."""
        now = self._clock()
        recent = [one for one in self._samples.copy() if one.at >= now - WINDOW_S]
        answers = [one for one in self._answers.copy() if one.at >= now - WINDOW_S]
        self._rises = [one.to_json() for one in rises(recent, now, answers)]

    async def ask_cluster(self) -> None:
        """Ask the directory about the cluster; raises Unavailable."""
        self._cluster = await self._source.cluster()

    def changes(self) -> Json:
        """What changed since the last call."""
        now, monotonic_s = self._clock(), time.monotonic()
        last, rows = self._source.rows.last, self._source.rows.after(self._last)
        self._last = last
        views, told = self._source.running(), self._source.peers()
        told.count(self._counts, monotonic_s)
        self._since = min(self._since, now - told.observed_s)
        self._count_running(views, monotonic_s)
        for row in rows:
            self._count_row(row, monotonic_s)
        running = set(map(_key, views))
        self._counted = {key: one for key, one in self._counted.items() if key in running}
        self._series.forget(now)
        found = self._sections.changes(self._all_sections(views, told, monotonic_s))
        if points := self._series.changes():
            found["series"] = points
        peer_rows = [*told.rows()]
        self._peer_rows.extend(peer_rows)
        if rows or peer_rows:
            found["rows"] = [row_view(row) for row in rows[-MOST_ROWS:]] + peer_rows
            found["skipped"] = max(0, len(rows) - MOST_ROWS) + told.skipped
        return found | {"now": round(now, 3)}

    def whole(self) -> Json:
        """All that a page needs that just opened."""
        rows = self._source.rows.after(max(0, self._last - FIRST_ROWS))
        own = [row_view(row) for row in rows[-FIRST_ROWS:]]
        return self._sections.known | {
            "router": self._source.name,
            "series": self._series.all(),
            "rows": self._peer_rows.beside(own),
            "chart": {"window_s": WINDOW_S, "step_s": STEP_S},
            "words": {"stages": STAGE_NAMES, "reasons": REASON_NAMES, "no_rise": NO_RISE},
            "now": round(self._clock(), 3),
        }

    def _all_sections(self, views: list[RunningView], told: PeersTold, now: float) -> Json:
        return self._source.state() | {
            "links": self._links.rates(now),
            "running": told.beside(self._running(views), self._clock()),
            "served": self._series.by_tenant(),
            "cluster": self._cluster,
            "rises": self._rises,
            "since": int(self._since),
        }

    def _running(self, views: list[RunningView]) -> Json:
        known = [(one, self._known(one).itl) for one in views]
        shown = sorted(known, key=partial(_prominence, self._clock()))[:MOST_RUNNING]
        return {
            "count": len(views),
            "waiting": sum(one.ttft_s is None for one in views),
            "stalled": sum(itl.stall_s > 0 for _, itl in known),
            "rows": [running_view(one, itl) for one, itl in shown],
        }

    def _known(self, view: RunningView) -> _Counted:
        key = _key(view)
        if (known := self._counted.get(key)) is None:
            known = self._counted[key] = _Counted()
        return known

    def _count_running(self, views: list[RunningView], now: float) -> None:
        for view in views:
            counted = self._known(view)
            for sender, receiver, size in view.moved[counted.transfers :]:
                self._links.moved(now, sender, receiver, size)
            counted.transfers = len(view.moved)
            if not counted.first_token and (sample := TtftSample.of_running(view)) is not None:
                counted.first_token = True
                self._count_sample(sample)
        self._read_itl(views, now)

    def _read_itl(self, views: list[RunningView], now: float) -> None:
        """Count the longest ITL of each request since the last time: once for each endpoint."""
        found: dict[tuple[str, float], list[float]] = {}
        for view in views:
            at, itl_s = self._known(view).itl.read(view.token_times, now)
            if itl_s:
                found.setdefault((view.endpoint, at), []).append(itl_s)
        for (endpoint, at), values in found.items():
            ranked = sorted(values)
            shown = evenly(ranked, _MOST_ITL)
            self._series.itl(self._clock() - (now - at), endpoint, shown, ranked[-1])

    def _count_late(self, rows: Sequence[RequestRow], views: list[RunningView]) -> None:
        since, now = self._clock() - WINDOW_S, time.monotonic()
        self._read_itl(views, now)
        for row in rows:
            if row.received_at + (row.total_s or 0.0) >= since:
                self._count_row(row, now)

    def _count_row(self, row: RequestRow, now: float) -> None:
        counted = self._counted.pop((row.tenant, row.request_id), None) or _Counted()
        if not counted.first_token and (sample := TtftSample.of_row(row)) is not None:
            self._count_sample(sample)
        if row.ttft_s is not None and row.completion_tokens:
            at = row.received_at + row.ttft_s
            self._answers.append(TextLength(at, row.tenant, row.completion_tokens))
        moved = [one for one in row.choices if one.transfer_bytes]
        for one in moved[counted.transfers :]:
            size = one.transfer_bytes or 0
            self._links.moved(now, one.prefill_replica, one.decode_replica, size)
        ended_at = row.received_at + (row.total_s or 0.0)
        tokens = (row.prompt_tokens or 0) + (row.completion_tokens or 0)
        if row.refused_for is not None:
            self._series.refused(ended_at, row.endpoint, row.refused_for)
            self._series.tenant_refused(ended_at, row.tenant)
        else:
            itl = counted.itl.not_read(row)
            self._series.ended(ended_at, row.endpoint, *itl, failed=row.failed)
            self._series.served(ended_at, row.tenant, tokens)

    def _count_sample(self, sample: TtftSample) -> None:
        self._samples.append(sample)
        self._series.first_token(sample.at, sample.endpoint, sample.ttft_s)


def _key(view: RunningView) -> _Key:
    return view.tenant, view.request_id


def _prominence(now: float, shown: tuple[RunningView, RunningItl]) -> tuple[float, float]:
    """Requests that wait for a token come first, the longest wait before; then the newest."""
    view, itl = shown
    return prominence(now, view.received_at, view.ttft_s, itl.stall_s)
