"""What a router knows of its replicas: its own at once, others' by report, nothing twice."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.placement.prefill_backlog import PlacedPrompt, RemainingPrompt
from cluster.placement.replica_load import ReplicaLoadTracker
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from engine.types.urgency import Urgency


def record(**load):
    return ReplicaRecord("r0", "decode", "", 1, load=ReplicaLoad(**load))


def remaining(tracker):
    return [one.tokens for one in tracker.backlog("r0").remaining()]


def others(tracker):
    return tracker.backlog("r0").others_of(ReplicaLoad())


def test_tokens_missing_in_a_report_were_computed_oldest_first():
    tracker = ReplicaLoadTracker()
    first = tracker.prompt("r0", PlacedPrompt(500), 0.0)
    tracker.prompt("r0", PlacedPrompt(100), 0.0)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=450), 1.0)
    assert remaining(tracker) == [350, 100]
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=100), 2.0)
    assert remaining(tracker) == [1, 99]
    first.release()
    assert remaining(tracker) == [100]
    assert others(tracker) == 0


def test_each_lane_computed_the_tokens_missing_in_its_reports():
    tracker = ReplicaLoadTracker()
    batch, other = PlacedPrompt(500, batch=True), PlacedPrompt(100)
    tracker.prompt("r0", batch, 0.0)
    tracker.prompt("r0", other, 0.0)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=520, batch_tokens_due=500), 1.0)
    assert tracker.backlog("r0").remaining() == [
        RemainingPrompt(other, 20, 0.0, Urgency.NONE),
        RemainingPrompt(batch, 500, 0.0, Urgency.NONE),
    ]


def test_what_a_batch_prompt_has_done_is_no_others():
    tracker = ReplicaLoadTracker()
    tracker.prompt("r0", PlacedPrompt(1000, batch=True), 0.0)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=400, batch_tokens_due=400), 1.0)
    tracker.prompt("r0", PlacedPrompt(500), 1.1)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=900, batch_tokens_due=400), 1.2)
    assert (remaining(tracker), others(tracker)) == ([500, 400], 0)


def test_others_do_not_hide_behind_what_was_computed():
    tracker = ReplicaLoadTracker()
    tracker.prompt("r0", PlacedPrompt(1000), 0.0)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=200), 1.0)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=1000), 1.1)
    assert (remaining(tracker), others(tracker)) == ([200], 800)


def test_what_comes_while_another_is_computed_is_counted_once():
    tracker = ReplicaLoadTracker()
    first = tracker.prompt("r0", PlacedPrompt(1000), 0.0)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=400), 1.0)
    tracker.prompt("r0", PlacedPrompt(300), 1.1)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=700), 1.101)
    assert (remaining(tracker), others(tracker)) == ([400, 300], 0)
    first.release()
    assert remaining(tracker) == [300]
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=300), 1.5)
    assert (remaining(tracker), others(tracker)) == ([300], 0)


def test_progress_is_known_by_what_is_missing():
    tracker = ReplicaLoadTracker()
    queue = tracker.backlog("r0")
    tracker.prompt("r0", PlacedPrompt(500), 1.0)
    for due, now in ((500, 2.0), (500, 3.0), (200, 4.0), (700, 5.0)):
        tracker.report("r0", ReplicaLoad(prompt_tokens_due=due), now)
    assert queue.progressed_s == 4.0
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=600), 6.0)  # of others
    assert queue.progressed_s == 6.0
    tracker.prompt("r0", PlacedPrompt(400), 6.5)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=800), 7.0)  # as many have come
    assert queue.progressed_s == 7.0


def test_additional_tokens_of_a_report_belong_to_other_routers():
    tracker = ReplicaLoadTracker()
    mine = tracker.prompt("r0", PlacedPrompt(100), 0.0)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=700), 1.0)
    assert others(tracker) == 600
    mine.release()
    assert remaining(tracker) == []
    tracker.unreport("r0")
    assert tracker.backlog("r0").others_of(ReplicaLoad(prompt_tokens_due=30)) == 30


def test_a_prompt_placed_just_before_a_report_counts_once():
    """It may be in it or not: were it another's, too, much would be refused until the next one."""
    tracker = ReplicaLoadTracker()
    tracker.prompt("r0", PlacedPrompt(100), 1.0)
    tracker.request("r0", 9, 0.06)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=100, running=1, blocks_promised=9), 1.001)
    assert (remaining(tracker), others(tracker)) == ([100], 0)
    assert (tracker.requests(record()), tracker.blocks(record())) == (1, 9)
    tracker.report("r0", ReplicaLoad(prompt_tokens_due=140, running=4, blocks_promised=29), 1.05)
    assert (remaining(tracker), others(tracker)) == ([100], 40)
    assert (tracker.requests(record()), tracker.blocks(record())) == (4, 29)


def test_a_prompt_on_its_way_was_not_computed():
    tracker = ReplicaLoadTracker()
    tracker.prompt("r0", PlacedPrompt(100), 1.0)
    tracker.report("r0", ReplicaLoad(), 1.001)
    assert remaining(tracker) == [100]


def test_without_reports_the_larger_count_stands():
    tracker = ReplicaLoadTracker()
    tracker.request("r0", 5, 0.06)
    assert tracker.requests(record(running=4)) == 4
    assert tracker.requests(record()) == 1
    assert tracker.blocks(record(blocks_promised=2)) == 5


def test_the_smallest_promised_latency_counts():
    tracker = ReplicaLoadTracker()
    first, second = tracker.request("r0", 1, 0.2), tracker.request("r0", 1, 0.06)
    assert tracker.itl_s("r0") == 0.06
    second.release()
    second.release()
    assert tracker.itl_s("r0") == 0.2
    first.release()
    assert tracker.itl_s("r0") == float("inf")


def test_a_promised_latency_counts_until_its_last_request_ends():
    tracker = ReplicaLoadTracker()
    first, second = tracker.request("r0", 1, 0.06), tracker.request("r0", 1, 0.06)
    first.release()
    assert tracker.itl_s("r0") == 0.06
    second.release()
    assert tracker.itl_s("r0") == float("inf")


@given(st.lists(st.tuples(st.sampled_from("pbar"), st.integers(1, 500)), max_size=60))
def test_nothing_is_left_once_all_is_released(steps):
    tracker, now, shares = ReplicaLoadTracker(), 0.0, []
    for kind, amount in steps:
        now += 0.01
        if kind in "pb":
            shares.append(tracker.prompt("r0", PlacedPrompt(amount, batch=kind == "b"), now))
            shares.append(tracker.request("r0", amount, 0.1))
        elif kind == "a" and shares:
            shares.pop(amount % len(shares)).release()
        else:
            due = ReplicaLoad(
                prompt_tokens_due=amount, batch_tokens_due=amount // 3, running=amount
            )
            tracker.report("r0", due, now)
        assert all(left >= 1 for left in remaining(tracker))
        assert others(tracker) >= 0
    for share in shares:
        share.release()
    tracker.unreport("r0")
    assert remaining(tracker) == [] and tracker.requests(record()) == tracker.blocks(record()) == 0
    tracker.forget([])
