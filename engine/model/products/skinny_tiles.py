"""Tiles of the skinny product, from the shape of the weight alone.

The tiles do not depend on the number of rows, so that no answer depends on the batch. Nothing is
tuned at run time, so that replicas on equal devices compute equal answers.
"""

from __future__ import annotations

from dataclasses import dataclass

# A bound: with more rows a product is no longer bound by reading its weight.
MOST_ROWS = 64
# A bound: parts of the inputs that a workspace holds.
_MOST_SPLITS = 16
# A split has so many tiles of inputs at least, to fill the pipeline of its loads.
_LEAST_TILES = 4
# Few programs more than processors wait for nobody: 128 of 132 need no further split.
_ENOUGH = 0.9


@dataclass(frozen=True, slots=True)
class SkinnyTiles:
    """A launch: outputs and inputs of a tile, parts of the inputs, warps, and pipeline stages."""

    outputs: int
    depth: int
    splits: int
    warps: int
    stages: int


# Reckoned, not measured: a tile's row of inputs is a line of 128 bytes, and two programs with 48 KB
# of loads under way each fit on a processor. By bytes of a number.
_TILES = {
    2: SkinnyTiles(outputs=128, depth=64, splits=1, warps=4, stages=4),
    4: SkinnyTiles(outputs=32, depth=32, splits=1, warps=4, stages=4),
}


def tiles_for(
    outputs: int, inputs: int, itemsize: int, processors: int, *, gated: bool = False
) -> SkinnyTiles:
    """Tiles of a weight [outputs, inputs]; splits until every processor has a program.

    A gated product has two tiles of half the outputs, and no splits.
    """
    kind = _TILES[itemsize]
    if gated:
        return SkinnyTiles(kind.outputs // 2, kind.depth, 1, kind.warps, kind.stages)
    across, deep = -(-outputs // kind.outputs), -(-inputs // kind.depth)
    most = max(1, min(_MOST_SPLITS, deep // _LEAST_TILES))
    wanted = -(-round(_ENOUGH * processors) // across)
    return SkinnyTiles(kind.outputs, kind.depth, min(most, wanted), kind.warps, kind.stages)


def rows_of_tile(rows: int) -> int:
    """The rows that a program computes, the next of 16, 32 and 64; the others are masked."""
    return next(size for size in (16, 32, MOST_ROWS) if rows <= size)
