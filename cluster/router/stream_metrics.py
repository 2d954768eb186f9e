"""The metrics of the stream of one choice, and its row in the request log."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

from cluster.admission.assignment import Assignment, FirstTokenTiming
from cluster.api import ChoiceSummary, Progress, Scored, Tokens
from cluster.parsing.answer_parser import AnswerReader
from cluster.placement.types import Pair
from cluster.router.rows.choice_row import choice_row
from cluster.router.rows.stage_times import StageTimes
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.labels import Labels
from cluster.telemetry.requests.itl import StreamItl
from cluster.telemetry.requests.row import ChoiceRow
from cluster.telemetry.requests.stages import stages_of

_LEAST_S = 1e-3


class StreamMetrics:
    """Passes a choice's tokens on to `emit` and notes when they came.

    `times` are those of the choice, on which its stream works. `form` is that of a chat's answer.
    """

    def __init__(
        self,
        labels: Labels,
        assignment: Assignment,
        times: StageTimes,
        emit: Callable[[Scored | Tokens | Progress], None],
        form: str = "",
        choice: int = 0,
    ) -> None:
        self._answer = AnswerReader(form)
        self._labels = labels
        self._assignment = assignment
        self._first_plan = None if assignment.failed_over else assignment.plan
        self._choice = choice
        self._emit = emit
        self._came_s = array("d")
        self._count = self._earlier = 0
        self._itl: StreamItl | None = None
        self._ttfmt_s: float | None = None
        self._closed_s: float | None = None
        self.times = times

    @property
    def count(self) -> int:
        """The tokens of the choice so far, also those that another router passed on."""
        return self._count

    @property
    def token_times(self) -> Sequence[float]:
        """When events with its tokens came (monotonic), as long as the choice runs."""
        return self._came_s if self._itl is None else ()

    @property
    def pair(self) -> Pair:
        """The present replicas of the choice."""
        return self._assignment.plan.pair

    def follow(self, earlier: Sequence[tuple[float, Tokens]]) -> None:
        """Note the tokens that another router passed on, each with its time (monotonic).

        That router counted them, where it still could.
        """
        for at_s, tokens in earlier:
            self._came_s.append(at_s)
            self._earlier += len(tokens.ids)
            if self._ttfmt_s is None and self._means(tokens):
                self._ttfmt_s = at_s - self.times.began_s
        self._count = self._earlier

    def take(self, event: Scored | Tokens | Progress) -> None:
        """Pass on an event of the choice, and note when its tokens came."""
        self._emit(event)
        if isinstance(event, Scored):
            metrics.SCORED.inc(len(event.scores.logprobs), **self._labels)
        # The token behind scores is not part of an answer.
        if not isinstance(event, Tokens) or self._assignment.request.scored_from is not None:
            return
        now = time.monotonic()
        self._came_s.append(now)
        self._count += len(event.ids)
        if self._ttfmt_s is None and self._means(event):
            self._ttfmt_s = now - self.times.began_s
            metrics.TTFMT.observe(self._ttfmt_s, **self._labels)

    def first(self, first: FirstTokenTiming) -> None:
        """Count the stages of the time to the first token."""
        labels, request = self._labels, self._assignment.request
        metrics.TTFT.observe(first.ttft_s, **labels)
        metrics.STAGE.observe(max(0.0, self.times.queue_s), stage="queue", **labels)
        metrics.STAGE.observe(first.prefill_s, stage="prefill", **labels)
        metrics.STAGE.observe(max(0.0, first.flush_s), stage="first_flush", **labels)
        if not request.batch:
            where = {"endpoint": labels["endpoint"], "lane": labels["lane"]}
            ttft_s = max(first.ttft_s, _LEAST_S)
            metrics.TTFT_OF_BUDGET.observe(ttft_s / request.budget_s, **where)
            metrics.PREDICTION.observe(self._assignment.plan.forecast.ttft_s / ttft_s, **where)

    def finished(self, summary: ChoiceSummary) -> None:
        """Count the transfer and the decode admission of a finished choice."""
        if self.times.committed_s is not None and self._count > 1:
            metrics.STAGE.observe(summary.transfer_s, stage="transfer", **self._labels)
            admission_s = summary.decode_admission_s
            metrics.STAGE.observe(admission_s, stage="decode_admission", **self._labels)

    def close(self) -> None:
        """Count the whole choice, whether it finished or not."""
        self._closed_s = time.monotonic()
        metrics.ANSWER_TOKENS.inc(self._count - self._earlier, **self._labels)
        came_s, self._itl = self._came_s, StreamItl.of(self._came_s)
        if self._count > 1:
            itl_s = (came_s[-1] - came_s[0]) / (self._count - 1)
            metrics.INTER_TOKEN_LATENCY.observe(itl_s, **self._labels)
            metrics.STREAM_PAUSE.observe(self._itl.longest_s or 0.0, **self._labels)

    def row(self) -> ChoiceRow:
        """The row of the choice, as far as it came."""
        itl = self._itl or StreamItl.of(self._came_s)
        return self._row(self._came_s, itl, self._closed_s or time.monotonic())

    def so_far(self) -> ChoiceRow:
        """The row of the choice while its request runs.

        While the choice itself runs, the row lacks what depends on all of its tokens.
        """
        if self._closed_s is not None:
            return self.row()
        now = time.monotonic()
        row = self._row(self._came_s, StreamItl(), now)
        return replace(row, ttlt_s=None, tokens_per_s=None, running_s=now - self.times.began_s)

    def _means(self, tokens: Tokens) -> bool:
        answer = self._answer.tokens(tokens)
        return is_meaningful(answer.text) or bool(answer.tool_calls)

    def _row(self, came_s: Sequence[float], itl: StreamItl, at_s: float) -> ChoiceRow:
        return choice_row(
            self._choice,
            self.times,
            self._assignment,
            self._first_plan,
            came_s,
            itl,
            self._count,
            self._ttfmt_s,
            at_s,
        )

    def with_stages(self, summary: ChoiceSummary) -> ChoiceSummary:
        """The summary of the choice with its stages."""
        return replace(summary, stages=stages_of(self.row()))


def is_meaningful(text: str) -> bool:
    """Whether the text of a token has a letter or a digit."""
    return any(map(str.isalnum, text))
