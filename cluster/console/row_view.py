"""A request as the console shows it: one that ended, and one that runs. Texts are in neither."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.console.running_itl import RunningItl
from cluster.console.source import Json, RunningView
from cluster.console.words import in_words
from cluster.telemetry.requests.behind import with_blockers
from cluster.telemetry.requests.row import RequestRow, brief
from cluster.telemetry.requests.stages import stages_of

_SHOWN = (
    *("request_id", "endpoint", "tenant", "lane", "config", "arm", "outcome", "refused_for"),
    *("reason", "received_at", "total_s", "ttft_s", "ttlt_s", "itl_p95_s", "prompt_tokens"),
    *("completion_tokens", "prefill_replica", "decode_replica", "route", "failovers"),
)
_TEXTS = ("prompt", "answer")


def row_view(row: RequestRow) -> Json:
    """A request that ended, with the stages of its slowest choice as name, begin and end."""
    known = brief(row)
    found = {name: known[name] for name in _SHOWN if name in known}
    if row.slowest is not None:
        found["stages"] = [
            [one.stage, round(one.begin_s, 6), round(one.end_s, 6)]
            for one in stages_of(row.slowest)
        ]
    return found


def whole_view(
    row: RequestRow, rows: Sequence[RequestRow], running: Sequence[RequestRow] = ()
) -> Json:
    """All of a request that ended but its texts: each choice, what it waited behind, and words."""
    known = with_blockers(row, rows, running)
    found = {name: value for name, value in known.items() if name not in _TEXTS}
    return found | {"words": in_words(found)}


def named(row: Json, router: str) -> Json:
    """The row of any view with the name of its router, also in its words."""
    return in_its_words(row | {"router": router})


def in_its_words(row: Json) -> Json:
    """The row of a view after a change; its words, where it has any, are made anew."""
    return row | {"words": in_words(row)} if "words" in row else row


def running_view(view: RunningView, itl: RunningItl) -> Json:
    """A request that runs, and its longest stall so far."""
    return {
        "request_id": view.request_id,
        "tenant": view.tenant,
        "endpoint": view.endpoint,
        "lane": view.lane,
        "received_at": round(view.received_at, 3),
        "ttft_s": None if view.ttft_s is None else round(view.ttft_s, 6),
        "tokens": view.tokens,
        "longest_stall_s": round(itl.longest_s, 3),
        "stall_s": round(itl.stall_s, 3),
        "waited_for": view.waited_for,
        "prefill_replica": view.prefill_replica,
        "decode_replica": view.decode_replica,
    }
