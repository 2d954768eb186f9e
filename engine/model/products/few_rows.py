"""Products of few rows through our own kernel, as far as it is right and faster than cuBLAS."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch.nn.functional import linear

from engine.errors import first_line
from engine.model.fused_weights import Linear
from engine.model.products.skinny import SkinnyProducts
from engine.model.products.skinny_tiles import MOST_ROWS

log = logging.getLogger(__name__)

Tensor = torch.Tensor
# Seconds of a call.
Timer = Callable[[Callable[[], object]], float]

# The rows that are compared and measured.
_ROWS = (1, 8, 16, 32, MOST_ROWS)
# Our kernel is taken where it needs at most this share of cuBLAS's time: more than noise.
_FASTER = 0.97
# Numerics: the norm of the difference from cuBLAS's answer relative to it. Both round their answer.
_TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4}
# A race would change the answer of a run.
_RUNS = 3


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a choice holds for."""

    outputs: int
    inputs: int
    dtype: torch.dtype
    biased: bool
    gated: bool

    def __str__(self) -> str:
        gate = ", gated" if self.gated else ""
        return f"{self.outputs} x {self.inputs}{gate}"


class Ours(Protocol):
    """Our kernel; the answer goes to `out` if there is one."""

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Multiply."""
        ...


class FewRows:
    """Which products our kernel computes. Until `choose` is called: none."""

    def __init__(self, skinny: SkinnyProducts) -> None:
        self._skinny = skinny
        self._most: dict[_Kind, int] = {}

    def most_rows(self, weights: Linear, *, gated: bool = False) -> int:
        """Our kernel takes up to so many rows of this product; 0 for none."""
        return self._most.get(_kind(weights, gated), 0)

    def product(self, x: Tensor, weights: Linear) -> Tensor:
        """[rows, inputs] to [rows, outputs] by the faster kernel."""
        if self._takes(len(x), weights, gated=False):
            return self._skinny.product(x, weights)
        return linear(x, weights.weight, weights.bias)

    def gated(self, x: Tensor, weights: Linear, *, gelu: bool) -> Tensor | None:
        """act(gate) * up of [rows, inputs]; None where our kernel does not take it."""
        if self._takes(len(x), weights, gated=True):
            return self._skinny.gated(x, weights, gelu=gelu)
        return None

    def choose(self, weights: Linear, seconds: Timer) -> None:
        """Compare and measure the product of these weights, once for all of the same shape."""

        def ours(x: Tensor, out: Tensor | None = None) -> Tensor:
            return self._skinny.product(x, weights, out)

        def theirs(x: Tensor) -> Tensor:
            return linear(x, weights.weight, weights.bias)

        self._choose(_kind(weights, False), weights.weight, ours, theirs, seconds)

    def choose_gated(
        self, weights: Linear, gate: Callable[[Tensor], Tensor], seconds: Timer, *, gelu: bool
    ) -> None:
        """The same for a product together with its `gate`, which follows it otherwise."""

        def ours(x: Tensor, out: Tensor | None = None) -> Tensor:
            return self._skinny.gated(x, weights, out, gelu=gelu)

        def theirs(x: Tensor) -> Tensor:
            return gate(self.product(x, weights))

        self._choose(_kind(weights, True), weights.weight, ours, theirs, seconds)

    def _takes(self, rows: int, weights: Linear, *, gated: bool) -> bool:
        # Long prompts need no look at what was chosen.
        return 0 < rows <= MOST_ROWS and rows <= self.most_rows(weights, gated=gated)

    def _choose(
        self,
        kind: _Kind,
        weight: Tensor,
        ours: Ours,
        theirs: Callable[[Tensor], Tensor],
        seconds: Timer,
    ) -> None:
        if kind in self._most or kind.dtype not in _TOLERANCE or weight.dim() != 2:
            return
        self._most[kind] = 0
        inputs = [torch.randn(n, kind.inputs).to(weight.device, kind.dtype) for n in _ROWS]
        try:
            for x in inputs:
                self._check(ours, theirs(x), x)
            self._most[kind], told = _won(ours, theirs, inputs, seconds)
        except Exception as error:  # of a compiler, a launch, or an answer that differs
            reason = first_line(error)
            log.warning("product %s: cuBLAS for all rows: %s", kind, reason)
        else:
            most = self._most[kind]
            log.info("product %s: own kernel up to %d rows (%s)", kind, most, told)

    def _check(self, ours: Ours, expected: Tensor, x: Tensor) -> None:
        """Raise ArithmeticError where our answer differs, has gaps, or changes between runs."""
        answers = []
        for _ in range(_RUNS):
            out = torch.full_like(expected, torch.nan)
            self._skinny.poison()
            answers.append(ours(x, out))
        wide = expected.double()
        off = ((answers[0].double() - wide).norm() / wide.norm()).item()
        if not off <= _TOLERANCE[x.dtype]:
            raise ArithmeticError(f"its answer for {len(x)} rows differs by {off:.2g}")
        if not all(torch.equal(answers[0], answer) for answer in answers):
            raise ArithmeticError(f"its answer for {len(x)} rows changes from run to run")


def _kind(weights: Linear, gated: bool) -> _Kind:
    outputs, inputs = weights.weight.shape[-2:]
    return _Kind(outputs, inputs, weights.weight.dtype, weights.bias is not None, gated)


def _won(
    ours: Ours, theirs: Callable[[Tensor], Tensor], inputs: list[Tensor], seconds: Timer
) -> tuple[int, str]:
    """The most rows up to which our kernel is always faster, and what was measured."""
    most, told = 0, []
    for x in inputs:
        own, other = seconds(partial(ours, x)), seconds(partial(theirs, x))
        told.append(f"{len(x)}: {own * 1e6:.1f} of {other * 1e6:.1f} us")
        if own > _FASTER * other:
            break
        most = len(x)
    return most, ", ".join(told)


@dataclass(frozen=True, slots=True)
class FewRowsProduct:
    """A prepared product; see engine.model.layers_op_by_op.Apply."""

    by: FewRows
    weights: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply [rows, inputs] to [rows, outputs]."""
        return self.by.product(x, self.weights)
