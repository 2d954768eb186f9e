"""`tandem rollout` and `restart`: other replicas and routers for a cluster of `tandem serve`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from cluster.client.admin_client import fetch_status, request_rollout
from cluster.config.schema import TandemConfig, load_config
from cluster.discovery.rollout import document_of
from cluster.display_text import plain
from cluster.work_progress import WorkProgress
from engine.errors import Cancelled, DeadlineExceeded, Unauthenticated, Unavailable
from protos import router_pb2
from tandem_client.router_address import Address

_POLL_S = 0.25
# For starting Serve's processes, beyond what the replicas may take.
_MORE_S = 60.0


def run(options: argparse.Namespace) -> int:
    """Request a rollout or a restart, and wait until it serves; Unavailable says why not."""
    if options.restart:
        asyncio.run(_roll_out(options.address, None, False, TandemConfig().ray.ready_timeout_s))
        print("new ones serve; what the ones before them have begun goes on to its end")
        return 0
    given = {"model.path": options.model}
    overrides = {key: value for key, value in given.items() if value is not None}
    config = load_config(options.config, overrides)
    weaken, ready_s = options.weaken_security, config.ray.ready_timeout_s
    version = asyncio.run(_roll_out(options.address, document_of(config), weaken, ready_s))
    print(f"{version} serves; what the one before it has begun goes on to its end")
    return 0


async def _roll_out(
    address: Address, document: str | None, weaken_security: bool, ready_s: float
) -> str:
    requested = await request_rollout(address, document, weaken_security=weaken_security)
    for line in requested.weakens:
        print(f"weakens {line}", file=sys.stderr)
    for line in requested.notices:
        print(f"note: {line}", file=sys.stderr)
    what = "restart" if document is None else "rollout"
    try:
        with WorkProgress(what) as progress:
            return await _serving(address, requested.id, ready_s + _MORE_S, progress)
    except asyncio.CancelledError:
        where = "`tandem status --json` tells how far it is"
        print(f"tandem: the {what} goes on; {where}", file=sys.stderr)
        raise


async def _serving(address: Address, wanted: str, limit_s: float, progress: WorkProgress) -> str:
    """Wait until that rollout serves; returns its version. Unavailable says why it does not."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        rollout, starting = await _last_rollout(address)
        if rollout is None:
            progress.at(0, "between two routers")
        elif rollout.id != wanted:
            raise Unavailable("another rollout was asked for after this one")
        elif rollout.state == "serving":
            return rollout.version
        elif rollout.state == "failed":
            raise Unavailable(f"rollout failed, the old one goes on: {rollout.reason}")
        else:
            progress.at(0, rollout.state, starting)
        await asyncio.sleep(_POLL_S)
    raise Unavailable("the rollout is not done; `tandem status --json` tells how far it is")


async def _last_rollout(address: Address) -> tuple[router_pb2.RolloutStatus | None, str]:
    """The last rollout, None while no router answers or knows; and which replicas start."""
    try:
        status = await fetch_status(address)
    except (Cancelled, DeadlineExceeded, Unavailable):
        # Between the old router and the new one; the old one may have cut it off, or be frozen.
        return None, ""
    except Unauthenticated:
        raise Unauthenticated(
            "the new configuration serves, and it does not know this operator's key"
        ) from None
    starting = "; ".join(f"{plain(one.id)}: {plain(one.progress)}" for one in status.starting[:4])
    return status.rollout if status.HasField("rollout") else None, starting
