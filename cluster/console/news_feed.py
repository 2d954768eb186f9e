"""Tells other routers' consoles what happens in this router, made once for all that ask.

Nothing is made while no other router asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from cluster.console.counts import CountLog, LoggedCounts
from cluster.console.model import FIRST_ROWS, MOST_ROWS, ConsoleModel
from cluster.console.peer_news import PeerNews, RunningNews, by_kind
from cluster.console.row_view import row_view
from cluster.console.source import Json, ModelSource
from cluster.telemetry.requests.row_clock import row_clock

# Promise: requests are polled so often at most, however many routers ask.
_POLL_S = 0.4
# Without a question for so long, what came meanwhile is counted on a thread.
_LATE_S = 3.0
# Bound: counts of one answer. Its rows have the bounds of an event for a page.
_MOST_COUNTS = 500


class NewsFeed:
    """Answers from a model of its own. `source` tells of this router alone.

    `clock` is that of the rows.
    """

    def __init__(self, source: ModelSource, clock: Callable[[], float] = row_clock) -> None:
        self._source = source
        self._clock = clock
        self._log = CountLog()
        self._counts = LoggedCounts(self._log)
        self._model = ConsoleModel(source, clock, self._counts)
        self._sections: Json = {}
        self._views: dict[int, Json] = {}
        self._looked_s: float | None = None
        self._looking = asyncio.Lock()

    async def news(self, counts_after: int, rows_after: int) -> PeerNews:
        """The news behind these numbers of an answer before; 0: all that is remembered."""
        async with self._looking:
            await self._look()
        counts, counts_at = self._log.after(counts_after, _MOST_COUNTS)
        rows, rows_at = self._source.rows.after(rows_after), self._source.rows.last
        shown = rows[-MOST_ROWS if rows_after else -FIRST_ROWS :]
        views = [
            self._views.get(number) or row_view(row)
            for number, row in enumerate(shown, rows_at + 1 - len(shown))
        ]
        running = self._sections["running"]
        return PeerNews(
            counts_at,
            rows_at,
            more=counts_at < self._log.last,
            rows=tuple(views),
            skipped=len(rows) - len(shown) if rows_after else 0,
            running=RunningNews(
                running["count"], running["waiting"], tuple(running["rows"]), running["stalled"]
            ),
            tenants=self._sections.get("tenants", {}),
            observed_s=self._clock() - self._model.since,
            **by_kind(counts),
        )

    async def _look(self) -> None:
        """Look at the requests, unless that was just done."""
        now, before = time.monotonic(), self._looked_s
        if before is not None and now - before < _POLL_S:
            return
        if before is None or now - before > _LATE_S:
            await self._model.catch_up()
        changes = self._model.changes()
        # Their numbers in the store, so that no row is made again for a router that asks.
        views = changes.get("rows", ())
        self._views = dict(enumerate(views, self._source.rows.last + 1 - len(views)))
        self._sections |= changes
        self._counts.flush()
        self._looked_s = time.monotonic()
