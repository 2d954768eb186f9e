"""Sampling on a device without a copy to the host, with the tokens of engine/sampling/sampler.py.

The launches of a draw depend on its rows and its kind alone. So they are recorded once over the
logits of each recorded forward, and a draw from those logits is one replay. Draws from other logits
launch the same kernels one by one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import torch

from engine.errors import Internal
from engine.grammar.masks import TokenMasks
from engine.sampling.draw_kernels import DrawKernels
from engine.sampling.drawn_tokens import DrawnLogprobs, DrawnTokens
from engine.sampling.row_inputs import DrawKind, RowInputs
from engine.sampling.token_counts import TokenCounts
from engine.types.sequence import Sequence

Step = Callable[[], torch.Tensor]


class DeviceSampler:
    """Draws for steps and passes on one device, up to `rows` rows at a time.

    `vocabulary` is the width of the logits. Not thread-safe.
    """

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self._most_rows = rows
        self._inputs = RowInputs(rows, vocabulary, device)
        self._counts = TokenCounts(rows, vocabulary, device)
        self._kernels = DrawKernels(self._inputs, self._counts.table, rows)
        self._recorded: dict[tuple[int, DrawKind], Step] = {}

    def record(self, logits: torch.Tensor, record: Callable[[Step], Step]) -> None:
        """Record the draws from logits [rows, vocabulary] that stay at their address.

        Before there are requests: recording draws from whatever the logits are.
        """
        self._inputs.clear()
        for kind in DrawKind:
            step = record(partial(self._kernels.run, logits, kind))
            self._recorded[logits.data_ptr(), kind] = step

    @torch.no_grad()
    def draw(
        self,
        logits: torch.Tensor,
        sequences: list[Sequence],
        lengths: list[int],
        masks: TokenMasks | None = None,
    ) -> DrawnTokens:
        """See `engine.sampling.sampler.draw`.

        A sequence with penalties may lack its last token, if that was drawn before and its row
        here counts it.
        """
        if logits.dim() != 2 or logits.shape[0] != len(sequences):
            raise Internal(f"logits of shape {tuple(logits.shape)} for {len(sequences)} sequences")
        if not sequences:
            return DrawnTokens(torch.empty(0, dtype=torch.long), None, {})
        wanted = ((row, one.sampling.logprobs) for row, one in enumerate(sequences))
        best = {row: min(k, logits.shape[1]) for row, k in wanted if k is not None}
        starts = range(0, len(sequences), self._most_rows)
        parts = [slice(start, start + self._most_rows) for start in starts]
        found = []
        for part in parts:
            self._launch(logits[part], sequences[part], lengths[part], masks)
            found.append(self._results(len(sequences[part]), logs=bool(best)))
        results = found[0] if len(found) == 1 else [*map(torch.cat, zip(*found, strict=True))]
        logprobs = None
        if best:
            chosen, values, ids = results[1:]
            logprobs = DrawnLogprobs(best, chosen, values, ids, by_row=True)
        faults = {} if masks is None else masks.faults
        failed = {
            row: faults[one.owner] for row, one in enumerate(sequences) if one.owner in faults
        }
        return DrawnTokens(results[0], logprobs, failed)

    def _launch(
        self,
        logits: torch.Tensor,
        sequences: list[Sequence],
        lengths: list[int],
        masks: TokenMasks | None,
    ) -> None:
        slots = self._counts.slots_for(sequences, lengths)
        kind = self._inputs.fill(sequences, lengths, slots, masks)
        recorded = self._recorded.get((logits.data_ptr(), kind))
        if recorded is None:
            self._kernels.run(logits, kind)
        else:
            recorded()

    def _results(self, rows: int, *, logs: bool) -> list[torch.Tensor]:
        """Copies of what the next draw overwrites: tokens, their log-probabilities, the best."""
        kernels = self._kernels
        results = [kernels.tokens]
        if logs:
            results += [kernels.chosen, kernels.best_values, kernels.best_ids]
        return [result[:rows].clone() for result in results]


def device_sampler(rows: int, vocabulary: int, device: torch.device) -> DeviceSampler | None:
    """The sampler of a GPU; None for other devices, and without Triton."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    return DeviceSampler(rows, vocabulary, device)
