"""`tandem purge`: the cached KV and the resumable streams of a tenant go."""

from __future__ import annotations

import argparse
import asyncio
import sys


def run(options: argparse.Namespace) -> int:
    """Purge on every replica; 1 if one of them did not answer."""
    from cluster.client.admin_client import request_purge

    answer = asyncio.run(request_purge(options.address, options.tenant))
    for replica, blocks in sorted(answer.blocks.items()):
        print(f"{replica}: {blocks} blocks")
    for replica, reason in sorted(answer.failed.items()):
        print(f"{replica}: not purged: {reason}", file=sys.stderr)
    if answer.HasField("streams"):
        print(f"{answer.streams} resumable streams")
    return 1 if answer.failed else 0
