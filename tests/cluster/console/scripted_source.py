"""A router by script, for the console: rows and running requests are what a test says."""

from __future__ import annotations

from cluster.console.peer_news import PeersTold
from cluster.console.row_view import row_view, whole_view
from cluster.console.source import Listing, RunningView
from cluster.telemetry.requests.row import ChoiceRow, RequestRow
from cluster.telemetry.requests.store import RequestStore
from engine.errors import NotFound, Unavailable

NOW = 1_700_000_000.0
HOSTILE = "<img src=x onerror=alert(1)>"


def choice(ttft_s=0.1, *, admitted_s=0.01, queue_s=0.02, prefill="prefill-0", **more):
    """A choice whose prompt takes what is left of its TTFT."""
    return ChoiceRow(
        *(0, "handed_over", prefill, "decode-0"),
        admitted_s=admitted_s,
        sent_s=admitted_s,
        queue_s=queue_s,
        prefill_s=ttft_s - queue_s - 0.001,
        first_flush_s=0.001,
        ttft_s=ttft_s,
        **more,
    )


def row(name="r", at=NOW, *choices, **more):
    """A request that arrived at that time."""
    known = {"tenant": "acme", "total_s": 1.0, "prompt_tokens": 10} | more
    names = (name, known.pop("endpoint", "chat"), "c0", known.pop("outcome", "ok"))
    return RequestRow(*names, received_at=at, **known, choices=choices)


class ScriptedSource:
    """Implements `ConsoleSource` and `ConsoleActions`."""

    def __init__(self):
        self.name = "router-0"
        self.rows = RequestStore(since=NOW - 3600)
        self.views: list[RunningView] = []
        self.sections: dict[str, object] = {"replicas": {"prefill-0": {"waiting": 0}}}
        self.down = False
        self.asked = 0
        self.done: list[tuple[str, ...]] = []
        self.told = PeersTold()
        self.silent: dict[str, str] = {}
        self.closed = False

    def running(self):
        self.asked += 1
        return self.views

    def peers(self):
        told, self.told = self.told, PeersTold()
        return told

    def state(self):
        return dict(self.sections)

    async def listed(self, wanted):
        rows = list(self.rows)
        views = [row_view(one) for one in wanted.of(rows)]
        if wanted.request_id:
            views = [whole_view(one, rows) for one in wanted.of(rows)]
        return Listing(views, self.silent)

    async def close(self):
        self.closed = True

    async def cluster(self):
        if self.down:
            raise Unavailable("Redis is gone")
        return {"launched": True}

    def configuration(self):
        return {"version": "c0", "configuration": {"model": {"path": HOSTILE}}}

    async def stop_request(self, request_id, tenant, operator):
        if request_id != "r":
            raise NotFound("no such request")
        self.done.append(("stop", request_id, tenant, operator))

    async def end_replica(self, replica, how, operator):
        self.done.append((how, replica, operator))
