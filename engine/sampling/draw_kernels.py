"""The launches of a draw on a device, over buffers at fixed addresses."""

from __future__ import annotations

from functools import partial

import torch

from engine.sampling.row_inputs import DrawKind, RowInputs
from engine.types.sampling_params import MAX_LOGIT_BIAS, MAX_LOGPROBS

Tensor = torch.Tensor

# Tuned: tokens that a program takes.
_TILE = 2048
# Four bits a step of the 32 of a score.
_STEPS, _DIGITS = 8, 16
# A power of two, as kernels need it.
_MOST_BEST = 32


class DrawKernels:
    """Draws from logits [rows, vocabulary] by the rows of `inputs`.

    The launches depend on the number of rows and the kind of draw alone, and nothing waits for the
    device, so a CUDA graph can record them. The results are in `tokens` int64 [rows], and for rows
    that request it in `chosen` [rows], `best_values` and `best_ids` [rows, MAX_LOGPROBS].
    """

    def __init__(self, inputs: RowInputs, counts: Tensor, rows: int) -> None:
        from engine.kernels import filters_triton, logprobs_triton, sampling_triton

        self._sampling, self._filters = sampling_triton, filters_triton
        self._logprobs = logprobs_triton
        self._inputs, self._counts = inputs, counts
        vocabulary = counts.shape[1]
        self._tiles = -(-vocabulary // _TILE)
        # A scan of one number is no scan to the compiler.
        padded = max(2, 1 << (self._tiles - 1).bit_length())
        self._shape = {"VOCABULARY": vocabulary, "TILE": _TILE}
        self._sums_shape = {"COUNT": self._tiles, "TILES": padded}
        self._rows = {"ROWS": rows}

        new = partial(torch.zeros, device=counts.device)
        self.tokens = new(rows, dtype=torch.int64)
        self.chosen = new(rows)
        self.best_values = new((rows, MAX_LOGPROBS))
        self.best_ids = new((rows, MAX_LOGPROBS), dtype=torch.int64)
        self._scores = new((rows, vocabulary))
        self._tile_best = new((rows, padded))
        self._tile_token = new((rows, padded), dtype=torch.int32)
        self._sums = new((rows, padded), dtype=torch.float64)
        self._numbers = new((rows, padded), dtype=torch.int32)
        self._targets = new(rows, dtype=torch.float64)
        self._floors = new(rows)
        steps = (_STEPS + 1, rows)
        # Of the search by count, then of that by weight; both use the partial sums.
        self._prefixes = new((2, *steps), dtype=torch.int64)
        self._bases = new((2, *steps), dtype=torch.float64)
        self._partials = new((2, rows, padded, _DIGITS), dtype=torch.float64)
        self._top = new((rows, padded))
        self._exponentials = new((rows, padded))
        self._candidates = new((rows, padded, _MOST_BEST))
        self._candidate_ids = new((rows, padded, _MOST_BEST), dtype=torch.int32)

    def run(self, logits: Tensor, kind: DrawKind) -> Tensor:
        """Launch a draw; the tokens of the rows, which the next draw overwrites."""
        rows, scores = len(logits), logits
        if kind is DrawKind.FULL:
            scores = self._edited(logits)
        every = (rows, self._tiles)
        column = self._inputs.columns
        self._sampling.best[every](
            scores,
            scores.stride(0),
            self._tile_best,
            self._tile_token,
            **self._shape,
            TILES=self._sums_shape["TILES"],
        )
        filtered = kind is DrawKind.FULL
        if filtered:
            self._filter(rows)
        if kind is not DrawKind.GREEDY:
            self._sampling.weigh[every](
                scores,
                scores.stride(0),
                self._tile_best,
                column["temperature"],
                self._floors,
                self._sums,
                FILTERED=filtered,
                **self._shape,
                **self._sums_shape,
            )
        self._sampling.pick[(rows,)](
            scores,
            scores.stride(0),
            self._tile_best,
            self._tile_token,
            column["temperature"],
            column["noise"],
            self._floors,
            self._sums,
            column["slot"],
            self._counts,
            self.tokens,
            DRAWS=kind is not DrawKind.GREEDY,
            FILTERED=filtered,
            COUNTED=filtered,
            **self._shape,
            **self._sums_shape,
        )
        if kind is DrawKind.FULL:
            self._log(logits)
        return self.tokens[:rows]

    def _edited(self, logits: Tensor) -> Tensor:
        """The scores after penalties, masks and biases, float32 [rows, vocabulary]."""
        column, banned = self._inputs.columns, self._inputs.banned
        self._sampling.edit[(len(logits), self._tiles)](
            logits,
            logits.stride(0),
            self._scores,
            self._counts,
            banned,
            column["slot"],
            column["mask"],
            column["repetition"],
            column["presence"],
            column["frequency"],
            BYTES=banned.shape[1],
            **self._shape,
            # A product and a sum round once each, as in engine/sampling/penalties.py.
            enable_fp_fusion=False,
        )
        self._sampling.add_bias[(len(logits),)](
            self._scores,
            column["bias_start"],
            column["biases"],
            self._inputs.bias_tokens,
            self._inputs.bias_values,
            VOCABULARY=self._shape["VOCABULARY"],
            MOST=MAX_LOGIT_BIAS,
        )
        return self._scores[: len(logits)]

    def _filter(self, rows: int) -> None:
        """The lowest score that top-k, top-p and min-p keep of each row."""
        kernels, column, every = self._filters, self._inputs.columns, (rows, self._tiles)
        filters = (column["top_k"], column["top_p"])
        by_count, by_weight = zip(self._prefixes, self._bases, strict=True)
        self._narrow(rows, *by_count, by_count=True)
        kernels.total[every](
            self._scores,
            self._tile_best,
            column["temperature"],
            *filters,
            *by_count,
            self._partials,
            self._sums,
            self._numbers,
            **self._rows,
            **self._shape,
            **self._sums_shape,
        )
        kernels.aim[(rows,)](
            self._tile_best,
            column["temperature"],
            *filters,
            by_count[0],
            self._sums,
            self._numbers,
            self._targets,
            **self._rows,
            **self._sums_shape,
        )
        self._narrow(rows, *by_weight, by_count=False)
        kernels.settle[(rows,)](
            self._tile_best,
            *filters,
            column["min_p"],
            self._targets,
            by_count[0],
            *by_weight,
            self._partials,
            self._floors,
            **self._rows,
            **self._sums_shape,
        )

    def _narrow(self, rows: int, prefixes: Tensor, bases: Tensor, *, by_count: bool) -> None:
        column = self._inputs.columns
        for step in range(_STEPS):
            self._filters.narrow[(rows, self._tiles)](
                self._scores,
                self._tile_best,
                column["temperature"],
                column["top_k"],
                column["top_p"],
                self._targets,
                prefixes,
                bases,
                self._partials,
                step,
                BY_COUNT=by_count,
                **self._rows,
                **self._shape,
                **self._sums_shape,
            )

    def _log(self, logits: Tensor) -> None:
        """Log-probabilities of the model's own distribution."""
        rows, wanted = len(logits), self._inputs.columns["logprobs"]
        found = (self._top, self._exponentials, self._candidates, self._candidate_ids)
        self._logprobs.likeliest[(rows, self._tiles)](
            logits,
            logits.stride(0),
            wanted,
            *found,
            **self._shape,
            TILES=self._sums_shape["TILES"],
            MOST=_MOST_BEST,
        )
        self._logprobs.logprobs[(rows,)](
            logits,
            logits.stride(0),
            wanted,
            self.tokens,
            *found,
            self.chosen,
            self.best_values,
            self.best_ids,
            VOCABULARY=self._shape["VOCABULARY"],
            **self._sums_shape,
            MOST=_MOST_BEST,
            WIDTH=MAX_LOGPROBS,
        )
