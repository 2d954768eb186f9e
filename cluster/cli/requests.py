"""`tandem requests` and `tandem explain`: requests that ended, on all routers, and why."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster.api.limits import LISTED_ROWS, MAX_LISTED_ROWS
from cluster.cli.columns import aligned
from cluster.console.words import STAGE_NAMES
from cluster.display_text import known_time, plain
from cluster.telemetry.requests.row_order import rank

if TYPE_CHECKING:
    from cluster.client.admin_client import ListedRequests

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIMES = ("prefill_s", "first_flush_s", "ttft_s", "itl_p95_s", "ttlt_s")
# The parts of the wait before prefill.
WAITS = (STAGE_NAMES["admission"], STAGE_NAMES["prefill_queue"])
_COLUMNS = (
    *("received", "request", "endpoint", "tenant", "outcome", "prefill", "decode"),
    *("prompt", "tokens", *WAITS, "prefill", "flush", "TTFT", "ITL p95", "TTLT"),
)
_TEXT_COLUMNS = 7  # the first ones are aligned to the left
_ROUTER = "router"


def add_requests(listed: argparse.ArgumentParser, explained: argparse.ArgumentParser) -> None:
    """Add the arguments of `tandem requests` and of `tandem explain`."""
    listed.add_argument("--endpoint", default="", metavar="NAME", help="of this endpoint alone")
    listed.add_argument("--tenant", default="", metavar="NAME", help="of this tenant alone")
    listed.add_argument("--slowest", action="store_true", help="the longest TTFT first")
    listed.add_argument("--failed", action="store_true", help="what did not end well")
    text = "received in the last 90s, 15m, 2h or 1d"
    listed.add_argument("--since", type=seconds_from, default=0.0, metavar="TIME", help=text)
    text = f"at most N requests (default: {LISTED_ROWS}; at most {MAX_LISTED_ROWS})"
    listed.add_argument("--limit", type=_limit, default=LISTED_ROWS, metavar="N", help=text)
    text = "as `tandem requests` shows it"
    explained.add_argument("request", type=_request_id, metavar="ID", help=text)
    for parser in (listed, explained):
        text = "print JSON with all fields, and all choices"
        parser.add_argument("--json", action="store_true", help=text)


def list_requests(options: argparse.Namespace) -> int:
    """Print the requests that the options choose, of all routers, the newest first."""
    found = _fetch(
        options,
        endpoint=options.endpoint,
        tenant=options.tenant,
        failed=options.failed,
        slowest=options.slowest,
        since_s=options.since,
        limit=options.limit,
        choices=options.json,
    )
    by_rank = sorted(found.rows, key=partial(rank, slowest=options.slowest), reverse=True)
    rows = by_rank[: options.limit]
    print(json.dumps(rows, indent=2) if options.json else as_table(rows))
    return 0


def explain(options: argparse.Namespace) -> int:
    """Print where the time of one request went, or goes; NotFound if no router knows it."""
    from cluster.cli.waterfall import explained
    from engine.errors import NotFound

    rows = _fetch(options, request_id=options.request).rows
    if not rows:
        raise NotFound(
            f"no request {options.request!r} runs or is remembered; it may have ended too long ago"
        )
    print(json.dumps(rows, indent=2) if options.json else "\n\n".join(map(explained, rows)))
    return 0


def as_table(rows: list[dict[str, Any]]) -> str:
    """The rows as aligned columns; where several routers had them, a column names each one's."""
    lines = [_COLUMNS, *map(_cells, rows)]
    if any(_ROUTER in row for row in rows):
        routers = [_ROUTER, *(plain(row.get(_ROUTER, "-")) for row in rows)]
        lines = [(one, *cells) for one, cells in zip(routers, lines, strict=True)]
        return "\n".join(aligned(lines, _TEXT_COLUMNS + 1))
    return "\n".join(aligned(lines, _TEXT_COLUMNS))


def queue_waits(row: dict[str, Any]) -> tuple[float | None, float | None]:
    """The seconds that a request waited in the router, and then in the prefill queue.

    Of a request that lost a replica before its first token, the second part has that time, too.
    """
    queue_s, admitted_s = row.get("queue_s"), row.get("admitted_s")
    if queue_s is None or admitted_s is None:
        return None, None
    # Another router that had it does not tell when it admitted it.
    router_s = queue_s if admitted_s > row.get("ttft_s", math.inf) else min(admitted_s, queue_s)
    return router_s, queue_s - router_s


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    received = time.strftime("%H:%M:%S", time.localtime(row["received_at"]))
    outcome = row["outcome"]
    if row.get("refused_for"):
        outcome = f"{outcome}: {row['refused_for']}"
    names = ("request_id", "endpoint", "tenant")
    where = (row.get("prefill_replica", "-"), row.get("decode_replica", "-"))
    counts = (row.get("prompt_tokens", "-"), row.get("completion_tokens", "-"))
    seconds = (*queue_waits(row), *(row.get(name) for name in _TIMES))
    texts = (*(row.get(name, "-") for name in names), outcome, *where, *counts)
    return (received, *map(plain, texts), *map(known_time, seconds))


def _fetch(options: argparse.Namespace, **wanted: Any) -> ListedRequests:
    """The rows of all routers; names the routers that did not answer on standard error."""
    from cluster.api.validation import check_text
    from cluster.client.admin_client import fetch_requests
    from protos import router_pb2

    for name, value in wanted.items():
        if isinstance(value, str):
            check_text(value, name)
    request = router_pb2.ListRequestsRequest(**wanted)
    found = asyncio.run(fetch_requests(options.addresses, request))
    for name, reason in found.silent.items():
        print(plain(f"the requests of {name} are missing: {reason}"), file=sys.stderr)
    return found


def seconds_from(text: str) -> float:
    """Seconds of a time such as 90s or 15m; ArgumentTypeError otherwise."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{plain(text)[:40]!r} is no time such as 90s or 15m")
    return float(found[1]) * _UNITS[found[2]]


def _limit(text: str) -> int:
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 1 <= limit <= MAX_LISTED_ROWS:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {MAX_LISTED_ROWS}")
    return limit


def _request_id(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an id must not be empty")
    return text
