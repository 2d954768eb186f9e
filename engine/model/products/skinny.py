"""Launches of the skinny product, with the memory that its splits meet in."""

from __future__ import annotations

import torch

from engine.kernels.dependent_launch import DependentLaunch
from engine.model.fused_weights import Linear
from engine.model.products.skinny_tiles import MOST_ROWS, SkinnyTiles, rows_of_tile, tiles_for

Tensor = torch.Tensor

# Tiles of the weight that are fetched before the kernel before has ended.
_AHEAD = 4


class SkinnyProducts:
    """Products of 1 to MOST_ROWS rows; one at a time, on one stream.

    Products of one shape share a workspace, which is kept: recorded steps hold its address.
    `tiles` replaces the chosen tiles, for measurements.
    """

    def __init__(
        self,
        processors: int,
        dependent: DependentLaunch | None = None,
        tiles: SkinnyTiles | None = None,
    ) -> None:
        from engine.kernels import skinny_triton

        self._kernel = skinny_triton.skinny
        self._processors = processors
        self._dependent = dependent or DependentLaunch()
        self._tiles = tiles
        self._workspaces: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}

    def product(self, x: Tensor, weights: Linear, out: Tensor | None = None) -> Tensor:
        """[rows, inputs] to [rows, outputs], to `out` if there is one."""
        if out is None:
            out = x.new_empty(len(x), len(weights.weight))
        return self._launch(x, weights, out, gated=False, gelu=False)

    def gated(self, x: Tensor, weights: Linear, out: Tensor | None = None, *, gelu: bool) -> Tensor:
        """act(gate) * up of [rows, inputs], with weights [2 * outputs, inputs]."""
        if out is None:
            out = x.new_empty(len(x), len(weights.weight) // 2)
        return self._launch(x, weights, out, gated=True, gelu=gelu)

    def poison(self) -> None:
        """Fill the partial sums with NaN, so that a check sees which of them were not written."""
        for partials, _ in self._workspaces.values():
            partials.fill_(torch.nan)

    def _launch(
        self, x: Tensor, weights: Linear, out: Tensor, *, gated: bool, gelu: bool
    ) -> Tensor:
        weight, bias = weights.weight, weights.bias
        rows, inputs = x.shape
        outputs = out.shape[1]
        tiles = self._tiles or tiles_for(
            outputs, inputs, weight.element_size(), self._processors, gated=gated
        )
        across = -(-outputs // tiles.outputs)
        partials, arrivals = self._workspace(across, tiles, x.device)
        self._kernel[(across, tiles.splits)](
            x.contiguous(),
            weight,
            weight if bias is None else bias,
            out,
            partials,
            arrivals,
            rows,
            outputs,
            inputs,
            -(-inputs // tiles.depth // tiles.splits),
            ROWS=rows_of_tile(rows),
            OUTPUTS=tiles.outputs,
            DEPTH=tiles.depth,
            SPLITS=tiles.splits,
            AHEAD=_AHEAD,
            EVEN=outputs % tiles.outputs == 0 and inputs % tiles.depth == 0,
            BIASED=bias is not None,
            GATED=gated,
            GELU=gelu,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            **self._dependent.options,
        )
        return out

    def _workspace(
        self, across: int, tiles: SkinnyTiles, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """One for products of equal tiles; a product without splits uses nothing of it."""
        key = (across, tiles.outputs, tiles.splits) if tiles.splits > 1 else (1, 1, 1)
        if key not in self._workspaces:
            cells = MOST_ROWS * key[0] * key[1] * key[2]
            self._workspaces[key] = (
                torch.empty(cells, dtype=torch.float32, device=device),
                torch.zeros(key[0], dtype=torch.int32, device=device),
            )
        return self._workspaces[key]
