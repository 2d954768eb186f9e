"""What the measurement of a router's death prints."""

from bench.router.death import STAGES, Death, report


def test_each_round_has_a_column_and_the_median_is_last():
    stages = range(len(STAGES))
    rounds = [Death(tuple(s + r for s in stages), 2.0 + r, 180.0) for r in (0, 2, 1)]
    lines = report(rounds).splitlines()
    assert lines[0] == "| seconds after the kill | round 1 | round 2 | round 3 | median |"
    assert lines[2] == f"| {STAGES[0]} | 0.00 | 2.00 | 1.00 | 1.00 |"
    assert lines[-1] == "| memory of the new router, MiB | 180.0 | 180.0 | 180.0 | 180.0 |"
    assert len(lines) == 2 + len(STAGES) + 2
