"""The chosen tokens of a batch, on their device and on the way to the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.errors import Internal, TandemError
from engine.types.sequence import SampledToken

# On the device alone: the token of a row without a distribution.
NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class DrawnLogprobs:
    """Log-probabilities of the rows that request them.

    `best` has the number of likeliest tokens of each such row. `chosen` is [requested]; `values`
    and `ids` are [requested, most]. With `by_row` they have all rows of the batch.
    """

    best: Mapping[int, int]
    chosen: torch.Tensor
    values: torch.Tensor
    ids: torch.Tensor
    by_row: bool = False


class DrawnTokens:
    """The token of each row, int64 [rows] on the device; `faults` has the rows that have none.

    From a GPU the results are copied behind the kernels that were launched so far, and no later
    kernel delays them.
    """

    def __init__(
        self,
        tokens: torch.Tensor,
        logprobs: DrawnLogprobs | None,
        faults: Mapping[int, TandemError],
    ) -> None:
        self.tokens = tokens
        self._best = {} if logprobs is None else logprobs.best
        self._by_row = logprobs is not None and logprobs.by_row
        self._faults = faults
        results = [tokens]
        if logprobs is not None:
            results += [logprobs.chosen, logprobs.values, logprobs.ids]
        self._copied: torch.cuda.Event | None = None
        if tokens.is_cuda:
            results = [_pinned(result) for result in results]
            self._copied = torch.cuda.Event()
            self._copied.record()
        self._results = results

    def read(self) -> list[SampledToken | TandemError]:
        """The results, once they are computed."""
        if self._copied is not None:
            self._copied.synchronize()
        tokens = self._results[0].tolist()
        found: list[SampledToken | TandemError] = [SampledToken(token) for token in tokens]
        if self._best:
            chosen, values, ids = (result.tolist() for result in self._results[1:])
            for number, (row, count) in enumerate(self._best.items()):
                index = row if self._by_row else number
                top = tuple(zip(ids[index][:count], values[index][:count], strict=True))
                found[row] = SampledToken(tokens[row], chosen[index], top)
        for row, token in enumerate(tokens):
            if token == NO_TOKEN:
                found[row] = Internal("the model's logits are NaN or infinite")
        for row, fault in self._faults.items():
            found[row] = fault
        return found


def _pinned(result: torch.Tensor) -> torch.Tensor:
    host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
    return host.copy_(result, non_blocking=True)
