"""The times of one choice by stage, and the metrics of its stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.admission.assignment import Assignment, FirstTokenTiming
from cluster.api import ChoiceSummary, Progress, Scored, Tokens
from cluster.parsing.answer_parser import AnswerReader
from cluster.placement.types import Pair
from cluster.telemetry import router_metrics as metrics
from cluster.telemetry.labels import Labels

_LEAST_S = 1e-3


@dataclass(slots=True)
class StageTimes:
    """The times of a choice for its summary, in seconds as the replicas measured them."""

    began_s: float
    queue_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    transfer_s: float = 0.0
    admission_s: float = 0.0
    decode_s: float = 0.0
    preemptions: int = 0
    cached_tokens: int = 0

    def summary(self, choice: int, pair: Pair | None) -> ChoiceSummary:
        """The times of a finished choice; queue + prefill + first flush = TTFT.

        Without a pair another router saw the choice end, and its replicas are not known.
        """
        return ChoiceSummary(
            choice=choice,
            queue_s=self.queue_s,
            prefill_s=self.prefill_s,
            first_flush_s=self.ttft_s - self.queue_s - self.prefill_s,
            ttft_s=self.ttft_s,
            transfer_s=self.transfer_s,
            decode_admission_s=self.admission_s,
            decode_s=self.decode_s,
            preemptions=self.preemptions,
            prefill_replica=pair.prefill.id if pair else "",
            decode_replica=pair.decode.id if pair else "",
            cached_tokens=self.cached_tokens,
        )


class StreamMetrics:
    """Passes a choice's tokens on to `emit` and notes when they came.

    `began_s` is when the request arrived (monotonic). `form` is that of a chat's answer.
    """

    def __init__(
        self,
        labels: Labels,
        assignment: Assignment,
        began_s: float,
        emit: Callable[[Scored | Tokens | Progress], None],
        form: str = "",
    ) -> None:
        self._answer = AnswerReader(form)
        self._labels = labels
        self._assignment = assignment
        self._began_s = began_s
        self._emit = emit
        self._first_s: float | None = None
        self._last_s = 0.0
        self._pause_s = 0.0
        self._count = 0
        self._meaningful = False

    def take(self, event: Scored | Tokens | Progress) -> None:
        """Pass on an event of the choice."""
        if isinstance(event, Tokens):
            self.tokens(event)
            return
        self._emit(event)
        if isinstance(event, Scored):
            metrics.SCORED.inc(len(event.scores.logprobs), **self._labels)

    def tokens(self, tokens: Tokens) -> None:
        """Pass on tokens, and note when they came."""
        self._emit(tokens)
        if self._assignment.request.scored_from is not None:
            return  # the token behind scores is not part of an answer
        now = time.monotonic()
        if self._first_s is None:
            self._first_s = now
        elif now - self._last_s > self._pause_s:
            self._pause_s = now - self._last_s
        self._last_s = now
        self._count += len(tokens.ids)
        if not self._meaningful:
            answer = self._answer.tokens(tokens)
            if is_meaningful(answer.text) or answer.tool_calls:
                self._meaningful = True
                metrics.TTFMT.observe(now - self._began_s, **self._labels)

    def first(self, first: FirstTokenTiming) -> None:
        """Count the stages of the time to the first token."""
        labels, request = self._labels, self._assignment.request
        metrics.TTFT.observe(first.ttft_s, **labels)
        queue_s = max(0.0, first.ttft_s - first.prefill_s - first.flush_s)
        metrics.STAGE.observe(queue_s, stage="queue", **labels)
        metrics.STAGE.observe(first.prefill_s, stage="prefill", **labels)
        metrics.STAGE.observe(max(0.0, first.flush_s), stage="first_flush", **labels)
        if not request.batch:
            where = {"endpoint": labels["endpoint"], "lane": labels["lane"]}
            ttft_s = max(first.ttft_s, _LEAST_S)
            metrics.TTFT_OF_BUDGET.observe(ttft_s / request.budget_s, **where)
            metrics.PREDICTION.observe(self._assignment.plan.forecast.ttft_s / ttft_s, **where)

    def finished(self, summary: ChoiceSummary) -> None:
        """Count the transfer and the decode admission of a finished choice."""
        if summary.prefill_replica != summary.decode_replica and self._count > 1:
            metrics.STAGE.observe(summary.transfer_s, stage="transfer", **self._labels)
            admission_s = summary.decode_admission_s
            metrics.STAGE.observe(admission_s, stage="decode_admission", **self._labels)

    def close(self) -> None:
        """Count the whole choice, whether it finished or not."""
        metrics.ANSWER_TOKENS.inc(self._count, **self._labels)
        if self._first_s is not None and self._count > 1:
            itl_s = (self._last_s - self._first_s) / (self._count - 1)
            metrics.INTER_TOKEN_LATENCY.observe(itl_s, **self._labels)
            metrics.STREAM_PAUSE.observe(self._pause_s, **self._labels)


def is_meaningful(text: str) -> bool:
    """Whether the text of a token has a letter or a digit."""
    return any(map(str.isalnum, text))
