"""Starts a cluster, lets it serve calmly, and then makes TTFT rise by one known cause.

    python -m bench.faults.main slow-prefill|tenant-burst|kv-full [--calm 60] [--hold 480]

It prints one line of JSON when the cluster serves, and one when the fault is there. The fault lasts
until `--hold` seconds are over, or Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import get_args

from bench.faults.cluster_faults import FAULTS, FaultName
from bench.faults.faulty_cluster import FaultyCluster, served


def main() -> None:
    """Run one fault."""
    options = _parse()
    # As an exception, so that the cluster ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = options.cache.absolute() / "faults"
    folder.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.suppress(KeyboardInterrupt),
        served(FAULTS[options.fault], folder, ports=(options.port, options.grpc_port)) as it,
    ):
        asyncio.run(_run(it, options))


async def _run(cluster: FaultyCluster, options: argparse.Namespace) -> None:
    _say("calm", cluster, options.calm)
    async with cluster.calm():
        await asyncio.sleep(options.calm)
        async with cluster.fault():
            _say("fault", cluster, options.hold, cause=cluster.cause if options.tell else "")
            await asyncio.sleep(options.hold)
    _say("over", cluster, 0.0)


def _say(state: str, cluster: FaultyCluster, seconds: float, **more: object) -> None:
    known = {
        "state": state,
        "since": time.strftime("%H:%M:%S"),
        "seconds": seconds,
        "console": f"http://127.0.0.1:{cluster.http_port}/console",
        "grpc": cluster.grpc,
        "operator_key": cluster.operator_key,
    }
    ended = {" ".join(key): count for key, count in sorted(cluster.traffic.ended.items())}
    found = known | {name: one for name, one in more.items() if one} | {"requests": ended}
    print(json.dumps(found), flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("fault", choices=get_args(FaultName))
    parser.add_argument("--calm", type=float, default=60.0, help="seconds before the fault")
    parser.add_argument("--hold", type=float, default=480.0, help="seconds of the fault")
    parser.add_argument("--port", type=int, default=0, help="of HTTP; 0 takes a free one")
    parser.add_argument("--grpc-port", type=int, default=0, help="of gRPC; 0 takes a free one")
    parser.add_argument("--cache", type=Path, default=Path(".bench"), help="for the server's log")
    parser.add_argument("--tell", action="store_true", help="say what the cause is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
