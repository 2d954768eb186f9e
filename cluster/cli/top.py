"""`tandem top`: pools, replicas, endpoints and the slowest requests, as they are now."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cluster.cli.columns import aligned
from cluster.cli.requests import seconds_from
from cluster.cli.top_view import TopTable, sections_of
from cluster.work_progress import redraws
from engine.errors import DeadlineExceeded, Unavailable

if TYPE_CHECKING:
    from rich.console import Group

    from protos import router_pb2

_LEAST_S = 0.5
# More than are shown, since a router of an older version has requests without a token among them.
_ASKED = 50


def add_top(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `tandem top`."""
    text = "requests that arrived in the last 90s, 15m, 2h or 1d (default: 5m)"
    parser.add_argument("--since", type=_since, default=300.0, metavar="TIME", help=text)
    text = "seconds between two looks (default: 2); once, and as plain text, where it is piped"
    parser.add_argument("--every", type=_every, default=2.0, metavar="SECONDS", help=text)


def top(options: argparse.Namespace) -> int:
    """Show the cluster until the user ends it; one plain page where stdout is no terminal."""
    if not redraws(sys.stdout):
        print(as_text(asyncio.run(_looked(options))))
        return 0
    asyncio.run(live(lambda: _looked(options), options.every))
    return 0


def as_text(sections: list[TopTable]) -> str:
    """The sections below each other, as aligned columns."""
    parts = []
    for one in sections:
        lines = aligned([one.columns, *one.rows], one.text_columns) if one.rows else ["-"]
        parts.append("\n".join([one.title.upper(), *lines]))
    return "\n\n".join(parts)


async def live(look: Callable[[], Awaitable[list[TopTable]]], every_s: float) -> None:
    """Show what `look` finds, every so many seconds, until it raises what no later look mends."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    shown = _tables(await look())
    with Live(shown, screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(every_s)
            try:
                shown = _tables(await look())
            except (Unavailable, DeadlineExceeded) as error:
                # It may come back, and what was seen last stays readable until then.
                live.update(Group(shown, Text(error.message)), refresh=True)
            else:
                live.update(shown, refresh=True)


async def _looked(options: argparse.Namespace) -> list[TopTable]:
    """What the first router knows of the replicas, and all routers of their requests."""
    from cluster.client.admin_client import fetch_requests, fetch_status
    from protos import router_pb2

    wanted = router_pb2.ListRequestsRequest(
        since_s=options.since,
        slowest=True,
        answered=True,
        limit=_ASKED,
        rises=True,
        figures=True,
    )
    status: router_pb2.StatusResponse = await fetch_status(options.address)
    found = await fetch_requests(options.addresses, wanted)
    return sections_of(status, found, options.since)


def _tables(sections: list[TopTable]) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tables = []
    for one in sections:
        table = Table(title=one.title, title_justify="left", expand=True)
        for number, name in enumerate(one.columns):
            table.add_column(name, justify="left" if number < one.text_columns else "right")
        for row in one.rows:
            table.add_row(*map(Text, row))
        tables.append(table)
    return Group(*tables)


def _since(text: str) -> float:
    """A time by which counts are divided."""
    if not (value := seconds_from(text)):
        raise argparse.ArgumentTypeError("must be more than 0 s")
    return value


def _every(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _LEAST_S <= value <= 3600:
        raise argparse.ArgumentTypeError(f"must be between {_LEAST_S:g} and 3600")
    return value
