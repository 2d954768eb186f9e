"""The same requests on two systems, one by one. Pure.

Where a load treats its requests differently, as one that computes prompts beside some of them, the
median request of one system need not be that of the other. A request held against itself is the
same prompt, the same answer and the same moment of the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.compare.burst_measurement import Measured
from bench.core.markdown_tables import table
from bench.core.statistics import Spread


@dataclass(frozen=True, slots=True)
class SameRequests:
    """What changed for requests of one load, seed and round.

    `itls_s`: our mean ITL less theirs, of each that both answered in full with two tokens or more.
    `ours_alone` were within their goals with us and not with them, `theirs_alone` the reverse.
    """

    itls_s: tuple[float, ...]
    ours_alone: int
    theirs_alone: int


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Of several pairs of runs: each one's median difference (seconds) and share of smaller ITL.

    `ours_alone` and `theirs_alone` as in SameRequests.
    """

    difference_s: Spread
    smaller: Spread
    ours_alone: Spread
    theirs_alone: Spread


def same_requests(ours: Measured, theirs: Measured) -> SameRequests:
    """Holds two runs of one load against each other; ValueError where they differ in length."""
    itls = zip(ours.each_itl, theirs.each_itl, strict=True)
    within_goals = list(zip(ours.each_within_goals, theirs.each_within_goals, strict=True))
    return SameRequests(
        tuple(mine - other for mine, other in itls if mine is not None and other is not None),
        sum(mine and not other for mine, other in within_goals),
        sum(other and not mine for mine, other in within_goals),
    )


def one_by_one(ours: Sequence[Measured], theirs: Sequence[Measured]) -> OneByOne | None:
    """Pairs runs of one load by round and seed; None where no two have an ITL to compare."""
    others = {_what(each): each for each in theirs if each.each_itl}
    paired = [
        same_requests(each, others[_what(each)])
        for each in ours
        if each.each_itl and _what(each) in others
    ]
    found = [each for each in paired if each.itls_s]
    if not found:
        return None
    return OneByOne(
        Spread(tuple(median(each.itls_s) for each in found)),
        Spread(tuple(sum(itl < 0 for itl in each.itls_s) / len(each.itls_s) for each in found)),
        Spread(tuple(float(each.ours_alone) for each in found)),
        Spread(tuple(float(each.theirs_alone) for each in found)),
    )


def as_table(found: OneByOne) -> str:
    """For a report on two pools against one, in Markdown."""
    differences = Spread(tuple(1000 * value for value in found.difference_s.values))
    rows = [
        ["ITL with two pools less that with one, ms, median", differences.show(1)],
        ["share of requests whose ITL is smaller with two pools", found.smaller.show(2)],
        ["within goals with two pools alone", found.ours_alone.show()],
        ["within goals with one pool alone", found.theirs_alone.show()],
    ]
    return table(["each request against itself", "of a run, median [range]"], rows)


def _what(each: Measured) -> tuple[int, int, str]:
    """The same for two runs that were sent the same requests at the same times."""
    return each.round, each.seed, each.about
