"""`tandem batch`: a file of requests against a running server."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable
from pathlib import Path

from cluster.batch.concurrency import BatchConcurrency
from cluster.batch.http_client import BatchServer
from cluster.batch.lines import read_input
from cluster.batch.output import BatchOutput
from cluster.batch.run import BatchProgress, BatchRun, endpoint_for
from cluster.cli.tls_options import add_tls, tls_ca
from cluster.sockets import join
from cluster.work_progress import WorkProgress
from engine.errors import ConfigError, Unavailable

DEFAULT_URL = "http://127.0.0.1:8000"
_CONCURRENCY = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("input", metavar="IN.jsonl", help="lines in OpenAI's batch form")
    parser.add_argument("output", metavar="OUT.jsonl", help="gets a line for each; may exist")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the server ({DEFAULT_URL})")
    add_tls(parser)
    parser.add_argument(
        "--endpoint", metavar="NAME", help="default: the server's first of the lane batch"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=_CONCURRENCY,
        metavar="N",
        help=f"most requests at a time ({_CONCURRENCY}); fewer while the server is overloaded",
    )


def run(options: argparse.Namespace) -> int:
    """Do the lines without a successful result; returns 0 if every line then has one, else 1."""
    if options.concurrency < 1:
        raise ConfigError("--concurrency must be at least 1")
    source, output = Path(options.input), Path(options.output)
    if not source.is_file():
        raise ConfigError(f"{source}: no such file")
    if output.exists() and output.samefile(source):
        raise ConfigError(f"{output} is the input")
    key, authority = os.environ.get("TANDEM_API_KEY"), tls_ca(options)
    server = BatchServer.at(options.url, key, authority)
    progress = asyncio.run(_hinted(server, _run(server, source, output, options)))
    print(f"tandem: {progress}", file=sys.stderr)
    return 0 if not progress.failed else 1


async def _hinted(server: BatchServer, batch: Awaitable[BatchProgress]) -> BatchProgress:
    """The result; an Unavailable says what to do, where that is known."""
    try:
        return await batch
    except Unavailable as error:
        from cluster.client.connect_hint import connect_hint

        target = join(server.host, server.port)
        hint = await connect_hint(target, server.tls, "https")
        raise Unavailable(f"{target}: {hint}" if hint else error.message) from None


async def _run(
    server: BatchServer, source: Path, output: Path, options: argparse.Namespace
) -> BatchProgress:
    answer = await server.get("/v1/models")
    if answer.reply.status != 200:
        raise Unavailable(f"{options.url}/v1/models answered with status {answer.reply.status}")
    endpoint = endpoint_for(answer.reply.body, options.endpoint)
    with BatchOutput(output) as results, source.open("rb") as lines:
        concurrency, before = BatchConcurrency(options.concurrency), len(results.done)
        batch = BatchRun(server, results.add, concurrency, endpoint, before=before)
        wanted = sum(1 for line in lines if line.strip()) - before
        lines.seek(0)
        try:
            with WorkProgress("batch", max(0, wanted)) as progress:
                await batch.run(
                    read_input(lines, results.done),
                    lambda line: progress.at(batch.progress.ended, line),
                )
        except BaseException:
            print(f"tandem: {batch.progress}; run it again for the rest", file=sys.stderr)
            raise
    return batch.progress
