"""From logits to the scores of a batch's own tokens, some rows at a time.

A row of logits is as long as the vocabulary. So the rows of a long prompt never exist together: the
scorer computes them in pieces, and keeps only the scores of each piece.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import accumulate

import torch

from engine.errors import Internal
from engine.types.scores import Scores
from engine.types.sequence import Span

# Tuned: rows of logits at a time, enough to multiply well and few beside a model's weights.
PIECE_ROWS = 64


class Scorer:
    """Scores the spans of one batch that request it; `order` is that of the packed spans."""

    def __init__(self, spans: list[Span], order: Sequence[int], device: torch.device) -> None:
        counts = [spans[index].count for index in order]
        begins = accumulate(counts, initial=0)
        self._runs: dict[int, range] = {}
        rows: list[int] = []
        targets: list[int] = []
        for index, begin in zip(order, begins, strict=False):
            span = spans[index]
            scored = span.scored
            if scored:
                self._runs[index] = range(len(rows), len(rows) + len(scored))
                rows += [begin + token - 1 - span.start for token in scored]
                targets += [span.sequence.tokens[token] for token in scored]
        self._spans = spans
        self._top = max((_top(spans[index]) for index in self._runs), default=0)
        self._rows = torch.tensor(rows, dtype=torch.long, device=device)
        self._targets = torch.tensor(targets, dtype=torch.long, device=device)
        self._logprobs: list[float] = []
        self._ids: list[list[int]] = []
        self._values: list[list[float]] = []
        self._sound: list[bool] = []

    def run(self, logits_of: Callable[[torch.Tensor], torch.Tensor]) -> Generator[None, None, None]:
        """Score piece by piece, pausing before each; `logits_of` gives the logits of some rows."""
        pieces = self._rows.split(PIECE_ROWS), self._targets.split(PIECE_ROWS)
        for rows, targets in zip(*pieces, strict=True):
            if len(rows):
                yield
                self._add(logits_of(rows), targets)

    def result(self, index: int) -> Scores | Internal | None:
        """The scores of a span, or the fault in its numbers; None if it requested none."""
        run = self._runs.get(index)
        if run is None:
            return None
        part, top = slice(run.start, run.stop), _top(self._spans[index])
        if not all(self._sound[part]):
            return Internal("the model's logits are NaN or infinite")
        return Scores(
            self._logprobs[part],
            [token for row in self._ids[part] for token in row[:top]],
            [value for row in self._values[part] for value in row[:top]],
        )

    def _add(self, logits: torch.Tensor, targets: torch.Tensor) -> None:
        table = logits.float().log_softmax(dim=-1)
        self._sound += logits.amax(dim=-1).isfinite().tolist()
        self._logprobs += table.gather(1, targets.unsqueeze(1)).squeeze(1).tolist()
        best = table.topk(min(self._top, table.shape[-1]), dim=-1)
        self._ids += best.indices.tolist()
        self._values += best.values.tolist()


def _top(span: Span) -> int:
    return span.sequence.scoring.top if span.sequence.scoring is not None else 0
