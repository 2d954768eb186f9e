"""Reports the progress of prompts to routers, for requests with `progress`."""

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
    """The report of one prompt. The events of `tokens` go before it."""

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
        return event or self._progress()

    def _progress(self) -> CallEvent | None:
        """The progress of the prompt; None if it is unknown or was reported before."""
        if self.over or (self.queued and self.position is None):
            return None
        computed = min(self.sequence.computed, self.sequence.prompt_tokens)
        progress = PromptProgress(computed=computed, queued=self.queued)
        if self.queued and self.position is not None:
            progress.position = self.position.position
            if self.position.wait_s is not None:
                progress.wait_s = self.position.wait_s
        if progress == self.last:
            return None
        self.last = progress
        return CallEvent(progress=progress)


class PromptReports:
    """Reports each prompt twice a second; `positions` has the queue position of waiting prompts."""

    def __init__(self, positions: Callable[[], Mapping[str, QueuePosition]]) -> None:
        self._positions = positions
        self._reports: dict[str, _Report] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, sequence: Sequence, sink: EventSink, tokens: Collect | None = None) -> Collect:
        """Report this prompt until its first token or `end`.

        A call that has `tokens` to send, too, collects both by the returned function.
        """
        report = self._reports.get(sequence.owner) or _Report(sequence, sink)
        report.tokens = tokens
        self._reports[sequence.owner] = report
        self._plan()
        return report.collect

    def end(self, sequence: Sequence) -> None:
        """Report the prompt no more. Idempotent."""
        report = self._reports.pop(sequence.owner, None)
        if report is not None:
            report.ended = True

    def _plan(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self._reports = {
            owner: report for owner, report in self._reports.items() if not report.over
        }
        if not self._reports:
            return
        waiting = any(report.queued for report in self._reports.values())
        positions = self._positions() if waiting else {}
        for owner, report in self._reports.items():
            report.position = positions.get(owner)
            report.sink.ready(report.collect)
        self._plan()
