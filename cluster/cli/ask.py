"""`tandem chat`, `tandem generate` and `tandem resume`: answers on the terminal."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import TextIO

from cluster.api import Event, Summary
from cluster.cli.sampling_options import sampling_of
from cluster.cli.waterfall import waterfall
from cluster.client.terminal import Conversation, stream_answer, timing
from tandem_client import Client


def chat(options: argparse.Namespace) -> int:
    """Ask once, or talk until the input ends."""
    conversation = Conversation(
        options.addresses, options.system, sys.stdout, sampling_of(options), _status_line()
    )
    try:
        if options.prompt is not None:
            conversation.ask(options.prompt)
        else:
            conversation.loop()
    finally:
        conversation.close()
    return 0


def generate(options: argparse.Namespace) -> int:
    """Continue a text."""
    sampling = sampling_of(options)
    if options.timing:
        sampling["timing"] = True
    summary = asyncio.run(
        _print(options, lambda client: client.generate(options.prompt, **sampling))
    )
    if options.timing:
        print(timing(summary), file=sys.stderr)
        for choice in summary.choices if summary else ():
            for line in waterfall([asdict(one) for one in choice.stages]):
                print(line, file=sys.stderr)
    return 0


def resume(options: argparse.Namespace) -> int:
    """Print the rest of a stream."""
    asyncio.run(_print(options, lambda client: client.resume(options.stream, options.have or ())))
    return 0


async def _print(
    options: argparse.Namespace, begin: Callable[[Client], AsyncIterator[Event]]
) -> Summary | None:
    async with Client(options.addresses, api_key=os.environ.get("TANDEM_API_KEY")) as client:
        _, summary = await stream_answer(begin(client), sys.stdout, _status_line())
    return summary


def _status_line() -> TextIO | None:
    """The terminal for progress lines; None where stderr is no terminal."""
    return sys.stderr if sys.stderr.isatty() else None
