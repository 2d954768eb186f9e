"""Products of few rows through our own kernel, as far as it is right and faster than cuBLAS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch.nn.functional import linear

from engine.model.fused_weights import Linear
from engine.model.products.skinny import SkinnyProducts
from engine.model.products.skinny_tiles import MOST_ROWS
from engine.model.trials.device_timer import Timer
from engine.model.trials.kernel_trial import KernelTrial, TrialCase

Tensor = torch.Tensor

# The rows that are compared and measured.
_ROWS = (1, 8, 16, 32, MOST_ROWS)
# Numerics: the tolerance of the trial. Both kernels round their answer.
_TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4}
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
        tolerance = _TOLERANCE.get(kind.dtype)
        if kind in self._most or tolerance is None or weight.dim() != 2:
            return
        trial = KernelTrial(f"product {kind}", "own kernel", "cuBLAS", tolerance, _RUNS)
        cases = [self._case(kind, rows, weight.device, ours, theirs) for rows in _ROWS]
        won = trial.cases_won(cases, seconds)
        self._most[kind] = _ROWS[won - 1] if won else 0

    def _case(
        self,
        kind: _Kind,
        rows: int,
        device: torch.device,
        ours: Ours,
        theirs: Callable[[Tensor], Tensor],
    ) -> TrialCase:
        x = torch.randn(rows, kind.inputs).to(device, kind.dtype)
        out = x.new_empty(rows, kind.outputs // 2 if kind.gated else kind.outputs)

        def spoil() -> None:
            out.fill_(torch.nan)
            self._skinny.poison()

        name = f"{rows} rows" if rows > 1 else "1 row"
        return TrialCase(name, partial(ours, x, out), partial(theirs, x), spoil)


def _kind(weights: Linear, gated: bool) -> _Kind:
    outputs, inputs = weights.weight.shape[-2:]
    return _Kind(outputs, inputs, weights.weight.dtype, weights.bias is not None, gated)


@dataclass(frozen=True, slots=True)
class FewRowsProduct:
    """A prepared product; see engine.model.layers_op_by_op.Apply."""

    by: FewRows
    weights: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply [rows, inputs] to [rows, outputs]."""
        return self.by.product(x, self.weights)
