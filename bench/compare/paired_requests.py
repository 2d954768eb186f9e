"""The same requests on two systems, one by one. Pure.

A load does not treat all requests alike: it computes prompts beside only some of them. So the two
systems may have different median requests. A request compared with itself has the same prompt, the
same answer and the same moment of the load.
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
    """The differences of the requests of one load, seed and round.

    `itls_s`: our mean ITL less theirs, of each request that both answered in full with two tokens
    or more. `ours_alone` requests were within their goals with us only, `theirs_alone` with them
    only.
    """

    itls_s: tuple[float, ...]
    ours_alone: int
    theirs_alone: int


@dataclass(frozen=True, slots=True)
class OneByOne:
    """The median difference (seconds) and share of smaller ITL of each of several pairs of runs.

    `ours_alone` and `theirs_alone` as in SameRequests.
    """

    difference_s: Spread
    smaller: Spread
    ours_alone: Spread
    theirs_alone: Spread


def same_requests(ours: Measured, theirs: Measured) -> SameRequests:
    """Compare two runs of one load; raises ValueError if they differ in length."""
    itls = zip(ours.each_itl, theirs.each_itl, strict=True)
    within_goals = list(zip(ours.each_within_goals, theirs.each_within_goals, strict=True))
    return SameRequests(
        tuple(mine - other for mine, other in itls if mine is not None and other is not None),
        sum(mine and not other for mine, other in within_goals),
        sum(other and not mine for mine, other in within_goals),
    )


def one_by_one(ours: Sequence[Measured], theirs: Sequence[Measured]) -> OneByOne | None:
    """Compare runs of one load, paired by round and seed; None if no pair has an ITL."""
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
    """The Markdown table of a report on two pools against one."""
    differences = Spread(tuple(1000 * value for value in found.difference_s.values))
    rows = [
        ["ITL with two pools less that with one, ms, median", differences.show(1)],
        ["share of requests whose ITL is smaller with two pools", found.smaller.show(2)],
        ["within goals with two pools alone", found.ours_alone.show()],
        ["within goals with one pool alone", found.theirs_alone.show()],
    ]
    return table(["each request against itself", "of a run, median [range]"], rows)


def _what(each: Measured) -> tuple[int, int, str]:
    """The key of a run: equal for runs with the same requests at the same times."""
    return each.round, each.seed, each.about
