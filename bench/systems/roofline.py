"""The limits of the machine: its memory, its matrix product, and the rates that follow.

On a shared host both change from minute to minute, so they are measured again and again during a
run, and the best ever seen is the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.core.model_135m import ModelShape
from bench.core.statistics import Spread

_READ_BYTES = 2**30
_PRODUCT = 2048
_BF16 = 2


@dataclass(frozen=True, slots=True)
class Roofline:
    """The measured limits: bytes read and operations per second, with all threads.

    The operations are in bfloat16, or in float32 if the processor has none for bfloat16.
    """

    bandwidth: Spread
    products: Spread

    def decode(self, shape: ModelShape, batch: int, context: float) -> float:
        """Tokens per second of a step that only reads weights and KV once, or only multiplies.

        The slower of the two counts; `context` is the mean number of tokens attended to.
        """
        weights = shape.layer_parameters + shape.head_parameters
        read = _BF16 * weights + batch * context * shape.kv_bytes
        work = batch * (2 * weights + _attention(shape, context))
        return batch / self._seconds(read, work)

    def prefill(self, shape: ModelShape, tokens: int) -> float:
        """Tokens per second of a prompt of that many tokens; only the last one needs logits."""
        read = _BF16 * (shape.layer_parameters + shape.head_parameters) + tokens * shape.kv_bytes
        work = tokens * (2 * shape.layer_parameters + _attention(shape, tokens / 2))
        return tokens / self._seconds(read, work + 2 * shape.head_parameters)

    def _seconds(self, read: float, work: float) -> float:
        return max(read / self.bandwidth.high, work / self.products.high)


class Meter:
    """Takes samples of both limits."""

    def __init__(self, repeats: int = 5) -> None:
        self._repeats = repeats
        self._values = torch.ones(_READ_BYTES // 4)
        self._multiply = _product(torch.randn(_PRODUCT, _PRODUCT), torch.randn(_PRODUCT, _PRODUCT))
        self._read: list[float] = []
        self._work: list[float] = []

    def sample(self) -> None:
        """Measure both limits once."""
        self._read += _rates(_READ_BYTES, self._repeats, self._values.sum)
        self._work += _rates(2 * _PRODUCT**3, 4 * self._repeats, self._multiply)

    def limits(self) -> Roofline:
        """The limits of all samples."""
        return Roofline(Spread(tuple(self._read)), Spread(tuple(self._work)))


def _product(left: torch.Tensor, right: torch.Tensor) -> Callable[[], object]:
    """The product as a linear layer, with weights in oneDNN's own order where it has one."""
    mkldnn = torch.backends.mkldnn
    if not (mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return lambda: left @ right
    left, packed = left.bfloat16(), torch.ops.mkldnn._reorder_linear_weight(right.bfloat16(), None)
    return lambda: torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")


def _attention(shape: ModelShape, context: float) -> float:
    """Operations of attention, for one query token: scores, and the sum of values."""
    return 4 * context * shape.layers * shape.heads * shape.head_size


def _rates(amount: int, repeats: int, run: Callable[[], object]) -> list[float]:
    run()
    rates = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        rates.append(amount / (time.perf_counter() - started))
    return rates
