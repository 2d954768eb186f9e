"""What the sampling of each row needs, in tensors at fixed addresses on the device."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.errors import Internal
from engine.grammar.masks import TokenMasks
from engine.sampling.counter_rng import stream_of, uniform_at
from engine.sampling.pinned_copies import send
from engine.types.sampling_params import MAX_LOGIT_BIAS, SamplingParams
from engine.types.sequence import Sequence

# Each column with its type, the widest first, so that all are aligned.
_COLUMNS: dict[str, type[np.generic]] = {
    **dict.fromkeys(("noise", "temperature", "min_p", "top_p"), np.float64),
    **dict.fromkeys(("repetition", "presence", "frequency"), np.float32),
    **dict.fromkeys(("top_k", "slot", "mask", "bias_start", "biases", "logprobs"), np.int32),
}
_GREEDY: dict[str, float] = {
    **dict.fromkeys(_COLUMNS, 0),
    **{"top_p": 1.0, "repetition": 1.0, "slot": -1, "mask": -1, "logprobs": -1},
}
_TORCH: dict[type[np.generic], torch.dtype] = {
    np.float64: torch.float64,
    np.float32: torch.float32,
    np.int32: torch.int32,
}


class DrawKind(IntEnum):
    """The work of a draw; each kind includes those before it."""

    GREEDY = 0
    PLAIN = 1
    FULL = 2


class RowInputs:
    """Parameters, random numbers, biases and masks of up to `rows` rows.

    The host keeps a copy, and rewrites the rows whose request changed. All columns travel as one
    copy. `columns` has each column on the device, [rows]: `min_p` is log(min-p) * temperature, and
    `mask` the row of a mask in `banned`, or -1. `bias_tokens` and `bias_values` are the biases of
    all rows, one row behind the other.
    """

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        sizes = [rows * np.dtype(kind).itemsize for kind in _COLUMNS.values()]
        self._host = np.zeros(sum(sizes), np.uint8)
        self._there = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
        self._here: dict[str, NDArray[Any]] = {}
        self.columns: dict[str, torch.Tensor] = {}
        begin = 0
        for (name, kind), size in zip(_COLUMNS.items(), sizes, strict=True):
            part = slice(begin, begin + size)
            self._here[name] = self._host[part].view(kind)
            self.columns[name] = self._there[part].view(_TORCH[kind])
            begin += size
        self.bias_tokens = torch.zeros(rows * MAX_LOGIT_BIAS, dtype=torch.int32, device=device)
        self.bias_values = torch.zeros(rows * MAX_LOGIT_BIAS, device=device)
        # As wide as llguidance's words of 32 bits.
        width = -(-vocabulary // 32) * 4
        self.banned = torch.zeros((rows, width), dtype=torch.uint8, device=device)
        self._known: list[tuple[SamplingParams, int] | None] = [None] * rows
        self._live = 0
        self._biases_sent = True
        self._kinds = [DrawKind.GREEDY] * rows
        self._streams = np.zeros(rows, np.uint64)
        self.clear()

    def clear(self) -> None:
        """Make every row a greedy one, and send it."""
        for row in range(len(self._known)):
            self._write(row, _GREEDY)
            self._known[row] = None
        send(self._host, self._there)

    def fill(
        self,
        sequences: list[Sequence],
        lengths: list[int],
        slots: NDArray[np.int32] | None,
        masks: TokenMasks | None,
    ) -> DrawKind:
        """Send the inputs of a draw; its kind.

        Row i draws the token behind the leading `lengths[i]` of sequences[i], with the counts in
        slots[i]. Rows behind the last are greedy.
        """
        count = len(sequences)
        self._write_rows(sequences)
        here = self._here
        here["noise"][:count] = uniform_at(self._streams[:count], lengths)
        here["slot"][:count] = -1 if slots is None else slots
        guided = self._send_masks(sequences, masks)
        send(self._host, self._there)
        return DrawKind.FULL if guided else max(self._kinds[:count])

    def _write_rows(self, sequences: list[Sequence]) -> None:
        """Rewrite the rows whose request is another one than in the draw before."""
        known = self._known
        self._live = max(self._live, len(sequences))
        for row, one in enumerate(sequences):
            last = known[row]
            if last is not None and last[0] is one.sampling and last[1] == one.choice:
                continue
            if one.sampling.logit_bias or (last is not None and last[0].logit_bias):
                self._biases_sent = False
            known[row] = None
            self._write_sequence(row, one)
            known[row] = one.sampling, one.choice
        for row in range(len(sequences), self._live):
            self._write(row, _GREEDY)
            known[row] = None
        self._live = len(sequences)
        if not self._biases_sent:
            self._send_biases()
            self._biases_sent = True

    def _write_sequence(self, row: int, sequence: Sequence) -> None:
        sampling = sequence.sampling
        values = dict(_GREEDY)
        full = sampling.edits_logits or sampling.logprobs is not None
        self._kinds[row] = DrawKind.GREEDY
        if not sampling.greedy:
            if sampling.seed is None:
                raise Internal(f"{sequence.owner} came to the sampler without a seed")
            self._streams[row] = stream_of(sampling.seed, sequence.choice)
            low = math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf
            values["temperature"] = sampling.temperature
            values["min_p"] = sampling.temperature * low
            values["top_p"] = sampling.top_p
            if sampling.top_k < self._vocabulary:
                values["top_k"] = sampling.top_k
            full = full or sampling.filters_tokens
            self._kinds[row] = DrawKind.PLAIN
        if full:
            self._kinds[row] = DrawKind.FULL
        if sampling.logprobs is not None:
            values["logprobs"] = min(sampling.logprobs, self._vocabulary)
        values["repetition"] = sampling.repetition_penalty
        values["presence"] = sampling.presence_penalty
        values["frequency"] = sampling.frequency_penalty
        self._write(row, values)

    def _write(self, row: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._here[name][row] = value

    def _send_biases(self) -> None:
        tokens: list[int] = []
        values: list[float] = []
        for row, last in enumerate(self._known):
            biases = {} if last is None else last[0].logit_bias
            self._here["bias_start"][row] = len(tokens)
            self._here["biases"][row] = len(biases)
            tokens += biases.keys()
            values += biases.values()
        if tokens:
            send(np.array(tokens, np.int32), self.bias_tokens[: len(tokens)])
            send(np.array(values, np.float32), self.bias_values[: len(values)])

    def _send_masks(self, sequences: list[Sequence], masks: TokenMasks | None) -> bool:
        """Whether a row has a mask."""
        rows = {} if masks is None else masks.rows
        found = [rows.get(one.owner) for one in sequences]
        guided = [row for row in found if row is not None]
        numbers = iter(range(len(guided)))
        self._here["mask"][: len(found)] = [-1 if r is None else next(numbers) for r in found]
        if masks is not None and guided:
            # A grammar may know more tokens than the model has logits.
            bits = np.ascontiguousarray(masks.bits[guided, : self.banned.shape[1]])
            send(bits, self.banned[: len(guided)])
        return bool(guided)
