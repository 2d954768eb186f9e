"""Answers on the terminal: one streamed reply, and the conversation around it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, TextIO

from cluster.api import ChatMessage, Event, Progress, Started, Summary, Tokens
from cluster.api.event_streams import closing
from cluster.display_text import exact_time, long_time

if TYPE_CHECKING:
    from tandem_client.grpc_client import Client
    from tandem_client.inputs import Options
    from tandem_client.router_address import Address


_WHOLE_LINE = "\r\x1b[K"


async def stream_answer(
    events: AsyncIterator[Event], out: TextIO, status: TextIO | None = None
) -> tuple[str, Summary | None]:
    """Print a reply as it comes, and close it; returns its text and the closing summary.

    Progress events are shown in one line of `status`, which is a terminal. The id of a resumable
    stream goes to stderr.
    """
    text, summary, shown = "", None, False
    async with closing(events):
        async for event in events:
            if shown and status is not None and not isinstance(event, Progress):
                print(_WHOLE_LINE, end="", file=status, flush=True)
                shown = False
            match event:
                case Progress() if status is not None:
                    print(_WHOLE_LINE + progress_line(event), end="", file=status, flush=True)
                    shown = True
                case Tokens():
                    text += event.text
                    print(event.text, end="", file=out, flush=True)
                case Summary():
                    summary = event
                case Started(stream_id=stream_id) if stream_id:
                    print(f"stream {stream_id}", file=sys.stderr, flush=True)
                case Started() | Progress():
                    pass
    print(file=out, flush=True)
    return text, summary


def progress_line(progress: Progress) -> str:
    """The progress of a request, in words."""
    if progress.stage in ("starting", "queued"):
        position = "" if progress.position is None else f", position {progress.position}"
        wait = "" if progress.wait_s is None else f", about {long_time(progress.wait_s)} to go"
        return f"{progress.stage}{position}{wait}"
    most = "at most " if progress.stage == "decode" else ""
    return f"{progress.stage}: {progress.tokens} of {most}{progress.total_tokens} tokens"


def timing(summary: Summary | None) -> str:
    """The times of the first token and of the whole answer, in words."""
    if summary is None or not summary.choices:
        return ""
    total, first = exact_time(summary.total_s), exact_time(summary.choices[0].ttft_s)
    return f"{summary.completion_tokens} tokens in {total}, the first after {first}"


class Conversation:
    """A conversation with a model over one client; each turn sends the whole history."""

    def __init__(
        self,
        addresses: Sequence[Address],
        system: str | None,
        out: TextIO,
        options: Options,
        status: TextIO | None = None,
    ) -> None:
        self._status = status
        self._runner = asyncio.Runner()
        self._client = self._runner.run(_connect(addresses))
        self._out = out
        self._options = options
        self._messages = [ChatMessage("system", system)] if system else []

    def ask(self, question: str) -> None:
        """Stream the answer; a turn that fails or is interrupted leaves the history as it was."""
        turn = [*self._messages, ChatMessage("user", question)]
        events = self._client.generate(turn, **self._options)
        text, _ = self._runner.run(stream_answer(events, self._out, self._status))
        self._messages = [*turn, ChatMessage("assistant", text)]

    def loop(self) -> None:
        """Ask what is typed until end of input; Ctrl-C ends an answer, not the conversation."""
        while True:
            try:
                question = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                print(file=self._out)
                return
            if not question:
                continue
            try:
                self.ask(question)
            except KeyboardInterrupt:
                print(" [cancelled]", file=self._out, flush=True)

    def close(self) -> None:
        """Close the client."""
        self._runner.run(self._client.close())
        self._runner.close()


async def _connect(addresses: Sequence[Address]) -> Client:
    from tandem_client.grpc_client import Client

    return Client(addresses, api_key=os.environ.get("TANDEM_API_KEY"))
