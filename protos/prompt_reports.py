"""Reports to routers how far prompts are, for requests that ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.scheduling.prompt_queue import QueuePosition
from engine.types.sequence import Sequence
from protos.calls_pb2 import CallEvent
from protos.event_sink import Collect, EventSink
from protos.prefill_pb2 import PromptProgress

# A promise: the time between two reports of a prompt.
EVERY_S = 0.5


@dataclass(slots=True)
class _Report:
    """The report of one prompt; `tokens` gives the call's other events, which go before."""

    sequence: Sequence
    sink: EventSink
    tokens: Collect | None = None
    position: QueuePosition | None = None
    last: PromptProgress | None = None
    ended: bool = False

    @property
    def over(self) -> bool:
        return self.ended or self.sequence.output_tokens > 0

    @property
    def queued(self) -> bool:
        return self.sequence.cached_tokens is None

    def collect(self) -> CallEvent | None:
        event = None if self.tokens is None else self.tokens()
        return event or self._news()

    def _news(self) -> CallEvent | None:
        """How far the prompt is now; None where that was reported before or is not known."""
        if self.over or (self.queued and self.position is None):
            return None
        computed = min(self.sequence.computed, self.sequence.prompt_tokens)
        news = PromptProgress(computed=computed, queued=self.queued)
        if self.queued and self.position is not None:
            news.position = self.position.position
            if self.position.wait_s is not None:
                news.wait_s = self.position.wait_s
        if news == self.last:
            return None
        self.last = news
        return CallEvent(progress=news)


class PromptReports:
    """Reports each prompt twice a second; `positions` has the queue position of waiting prompts."""

    def __init__(self, positions: Callable[[], Mapping[str, QueuePosition]]) -> None:
        self._positions = positions
        self._told: dict[str, _Report] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, sequence: Sequence, sink: EventSink, tokens: Collect | None = None) -> Collect:
        """Report this prompt until its first token or `end`.

        A call that has `tokens` to send, too, collects both by the returned function.
        """
        report = self._told.get(sequence.owner) or _Report(sequence, sink)
        report.tokens = tokens
        self._told[sequence.owner] = report
        self._plan()
        return report.collect

    def end(self, sequence: Sequence) -> None:
        """Report the prompt no more. Idempotent."""
        report = self._told.pop(sequence.owner, None)
        if report is not None:
            report.ended = True

    def _plan(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self._told = {owner: report for owner, report in self._told.items() if not report.over}
        if not self._told:
            return
        waiting = any(report.queued for report in self._told.values())
        positions = self._positions() if waiting else {}
        for owner, report in self._told.items():
            report.position = positions.get(owner)
            report.sink.ready(report.collect)
        self._plan()
