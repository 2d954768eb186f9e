"""What a router knows of its replicas: its own at once, others' by report, nothing twice."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.holds import Holds, Prompt
from cluster.membership import ReplicaLoad, ReplicaRecord


def record(**load):
    return ReplicaRecord("r0", "decode", "", 1, load=ReplicaLoad(**load))


def remaining(holds):
    return [left for _, left in holds.queue("r0").left()]


def test_what_a_report_does_not_have_was_computed_oldest_first():
    holds = Holds()
    first = holds.prompt("r0", Prompt(500), 0.0)
    holds.prompt("r0", Prompt(100), 0.0)
    holds.report("r0", ReplicaLoad(prompt_tokens_due=450), 1.0)
    assert remaining(holds) == [350, 100]
    holds.report("r0", ReplicaLoad(prompt_tokens_due=100), 2.0)
    assert remaining(holds) == [1, 99]
    first.release()
    assert remaining(holds) == [100]
    assert holds.queue("r0").others_of(ReplicaLoad()) == 0


def test_work_of_the_batch_lane_is_thought_to_be_computed_last():
    holds = Holds()
    holds.prompt("r0", Prompt(500, batch=True), 0.0)
    holds.prompt("r0", Prompt(100), 0.0)
    holds.report("r0", ReplicaLoad(prompt_tokens_due=520), 1.0)
    assert holds.queue("r0").left() == [(Prompt(100), 20), (Prompt(500, batch=True), 500)]


def test_what_is_computed_has_been_since_less_was_due():
    holds = Holds()
    queue = holds.queue("r0")
    assert queue.begun_s == float("inf")
    holds.prompt("r0", Prompt(500), 1.0)
    assert queue.begun_s == 1.0
    for due, now in ((500, 2.0), (500, 3.0), (200, 4.0), (700, 5.0)):
        holds.report("r0", ReplicaLoad(prompt_tokens_due=due), now)
    assert queue.begun_s == 4.0


def test_what_a_report_has_more_belongs_to_others():
    holds = Holds()
    mine = holds.prompt("r0", Prompt(100), 0.0)
    holds.report("r0", ReplicaLoad(prompt_tokens_due=700), 1.0)
    assert holds.queue("r0").others_of(ReplicaLoad()) == 600
    mine.release()
    assert remaining(holds) == []
    holds.unreport("r0")
    assert holds.queue("r0").others_of(ReplicaLoad(prompt_tokens_due=30)) == 30


def test_what_was_placed_just_before_a_report_is_counted_once():
    """It may be in it or not: were it another's, too, much would be refused until the next one."""
    holds = Holds()
    holds.prompt("r0", Prompt(100), 1.0)
    holds.request("r0", 9, 0.06)
    holds.report("r0", ReplicaLoad(prompt_tokens_due=100, running=1, blocks_promised=9), 1.001)
    assert (remaining(holds), holds.queue("r0").others_of(ReplicaLoad())) == ([100], 0)
    assert (holds.requests(record()), holds.blocks(record())) == (1, 9)
    holds.report("r0", ReplicaLoad(prompt_tokens_due=140, running=4, blocks_promised=29), 1.05)
    assert (remaining(holds), holds.queue("r0").others_of(ReplicaLoad())) == ([100], 40)
    assert (holds.requests(record()), holds.blocks(record())) == (4, 29)


def test_what_is_on_its_way_was_not_computed():
    holds = Holds()
    holds.prompt("r0", Prompt(100), 1.0)
    holds.report("r0", ReplicaLoad(), 1.001)
    assert remaining(holds) == [100]


def test_without_reports_the_larger_count_stands():
    holds = Holds()
    holds.request("r0", 5, 0.06)
    assert holds.requests(record(running=4)) == 4
    assert holds.requests(record()) == 1
    assert holds.blocks(record(blocks_promised=2)) == 5


def test_the_tightest_gap_among_those_there_counts():
    holds = Holds()
    first, second = holds.request("r0", 1, 0.2), holds.request("r0", 1, 0.06)
    assert holds.gap_s("r0") == 0.06
    second.release()
    second.release()
    assert holds.gap_s("r0") == 0.2
    first.release()
    assert holds.gap_s("r0") == float("inf")


def test_a_gap_counts_until_the_last_that_was_promised_it_ends():
    holds = Holds()
    first, second = holds.request("r0", 1, 0.06), holds.request("r0", 1, 0.06)
    first.release()
    assert holds.gap_s("r0") == 0.06
    second.release()
    assert holds.gap_s("r0") == float("inf")


@given(st.lists(st.tuples(st.sampled_from("par"), st.integers(1, 500)), max_size=60))
def test_nothing_is_left_once_all_is_released(steps):
    holds, now, shares = Holds(), 0.0, []
    for kind, amount in steps:
        now += 0.01
        if kind == "p":
            shares.append(holds.prompt("r0", Prompt(amount), now))
            shares.append(holds.request("r0", amount, 0.1))
        elif kind == "a" and shares:
            shares.pop(amount % len(shares)).release()
        else:
            holds.report("r0", ReplicaLoad(prompt_tokens_due=amount, running=amount), now)
        assert all(left >= 1 for left in remaining(holds))
        assert holds.queue("r0").others_of(ReplicaLoad()) >= 0
    for share in shares:
        share.release()
    holds.unreport("r0")
    assert remaining(holds) == [] and holds.requests(record()) == holds.blocks(record()) == 0
    holds.forget([])
