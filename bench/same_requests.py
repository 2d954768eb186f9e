"""The same requests on two systems, one by one. Pure.

Where a load treats its requests differently, as one that computes prompts beside some of them, the
median request of one system need not be that of the other. A request held against itself is the
same prompt, the same answer and the same moment of the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.burst_found import Measured
from bench.rates import Spread


@dataclass(frozen=True, slots=True)
class SameRequests:
    """What changed for requests of one load, seed and round.

    `gaps_s`: our gap less theirs, of each that both answered in full with two tokens or more.
    `ours_alone` were good with us and not with them, `theirs_alone` the other way round.
    """

    gaps_s: tuple[float, ...]
    ours_alone: int
    theirs_alone: int


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Of several runs: each one's median difference (seconds) and its share of smaller gaps."""

    difference_s: Spread
    smaller: Spread
    ours_alone: Spread
    theirs_alone: Spread


def same_requests(ours: Measured, theirs: Measured) -> SameRequests:
    """Holds two runs of one load with one seed against each other."""
    gaps = zip(ours.each_gap, theirs.each_gap, strict=True)
    goods = list(zip(ours.each_good, theirs.each_good, strict=True))
    return SameRequests(
        tuple(mine - other for mine, other in gaps if mine is not None and other is not None),
        sum(mine and not other for mine, other in goods),
        sum(other and not mine for mine, other in goods),
    )


def one_by_one(ours: Sequence[Measured], theirs: Sequence[Measured]) -> OneByOne | None:
    """Pairs runs by round and seed; None where no two have a gap to compare."""
    others = {(each.round, each.seed): each for each in theirs if each.each_gap}
    paired = [
        same_requests(each, others[each.round, each.seed])
        for each in ours
        if each.each_gap and (each.round, each.seed) in others
    ]
    found = [each for each in paired if each.gaps_s]
    if not found:
        return None
    return OneByOne(
        Spread(tuple(median(each.gaps_s) for each in found)),
        Spread(tuple(sum(gap < 0 for gap in each.gaps_s) / len(each.gaps_s) for each in found)),
        Spread(tuple(float(each.ours_alone) for each in found)),
        Spread(tuple(float(each.theirs_alone) for each in found)),
    )
