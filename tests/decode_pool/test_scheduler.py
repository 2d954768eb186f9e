"""The decode scheduler by example; as a state machine in test_scheduler_machine.py."""

import pytest

from engine.errors import Overloaded, PromptTooLong
from engine.kv.block_pool import BlockPool
from tests.decode_pool.scheduling import (
    BLOCK,
    MODEL,
    local_sequence,
    run_out,
    scheduler,
    sequence,
    start,
    step,
)


def test_requests_join_and_leave_at_every_step():
    subject = scheduler(BlockPool(50))
    start(subject, sequence("a", 5, max_tokens=3))
    assert step(subject) == []
    start(subject, sequence("b", 5, max_tokens=3))
    assert [done.owner for done in step(subject)] == ["a"]
    assert [done.owner for done in step(subject)] == ["b"]
    assert subject.running == 0


def test_out_of_blocks_preempts_the_newest_and_recomputes_it():
    pool = BlockPool(6)
    subject = scheduler(pool)
    start(subject, sequence("old", 7, max_tokens=14))
    start(subject, sequence("new", 6, max_tokens=14))
    finished = []
    for _ in range(60):
        finished += step(subject)
        if len(finished) == 1:
            assert subject.preemptions("new") >= 1
            break
    assert [done.owner for done in finished] == ["old"]
    while subject.running or subject.waiting:
        finished += step(subject)
    assert [done.owner for done in finished] == ["old", "new"]
    assert pool.free == pool.total


def test_an_older_request_waits_for_a_pass_instead_of_giving_up_its_blocks():
    pool = BlockPool(6)
    subject = scheduler(pool)
    old = sequence("old", 7, max_tokens=14)
    start(subject, old)
    step(subject)
    subject.offer_prompt(local_sequence("new", 9, max_tokens=2), 0.0)
    chunk = subject.schedule_chunk(0.0)
    pool.allocate("another", pool.free)
    assert subject.schedule() == []
    assert (subject.preemptions("old"), len(old.blocks)) == (0, 2)
    subject.complete(chunk)
    assert [span.sequence.owner for span in subject.schedule()] == ["old"]
    assert subject.preemptions("new") == 1


def test_a_request_that_could_not_run_alone_is_refused():
    subject = scheduler(BlockPool(2))
    subject.check_feasible(sequence("a", 5, max_tokens=4))
    with pytest.raises(PromptTooLong, match="needs 3 KV blocks, the decode pool has 2"):
        subject.check_feasible(sequence("a", 5, max_tokens=5))


def test_a_full_queue_refuses():
    subject = scheduler(BlockPool(9), waiting=1)
    subject.offer(sequence("a", 4), 0.0)
    with pytest.raises(Overloaded):
        subject.offer(sequence("b", 4), 0.0)


def test_the_batch_lane_leaves_a_part_of_the_queue_to_the_others():
    subject = scheduler(BlockPool(9), waiting=4)
    for number in range(3):
        subject.offer(sequence(f"b{number}", 4, lane="batch"), 0.0)
    with pytest.raises(Overloaded, match="3 requests wait already"):
        subject.offer(sequence("b3", 4, lane="batch"), 0.0)
    subject.offer(sequence("a", 4), 0.0)


def test_the_batch_is_bounded():
    subject = scheduler(BlockPool(90), batch=2)
    for name in "abc":
        subject.offer(sequence(name, 4), 0.0)
    assert [new.owner for new in subject.grant()] == ["a", "b"]


def test_a_local_request_starts_behind_what_a_finished_one_left():
    subject = scheduler(BlockPool(20), identity=MODEL)
    start(subject, sequence("turn one", 9, max_tokens=4))
    run_out(subject)
    # 12 tokens have KV: the prompt and all of the answer but its last.
    turn = local_sequence("turn two", 17)
    subject.offer_prompt(turn, 0.0)
    assert subject.schedule() == []
    (span,) = subject.schedule_chunk(0.0)
    assert turn.cached_tokens == 12
    assert (span.start, span.count) == (12, 5)
    assert span.samples


def test_a_local_request_waits_for_older_offers_and_an_evicted_prefix_is_computed_again():
    subject = scheduler(BlockPool(6), identity=MODEL, batch=1)
    start(subject, sequence("a", 9, max_tokens=4))
    subject.offer(sequence("b", 20, max_tokens=2), 0.0)
    late = local_sequence("late", 17)
    subject.offer_prompt(late, 0.0)
    assert (subject.grant(), subject.schedule_chunk(0.0)) == ([], [])
    run_out(subject)
    assert [new.owner for new in subject.grant()] == ["b"]
    subject.commit("b")
    assert subject.schedule_chunk(0.0) == []
    run_out(subject)
    chunk = subject.schedule_chunk(0.0)
    assert [span.sequence for span in chunk] == [late]
    assert late.cached_tokens == 16
    subject.abandon(chunk)
    subject.remove("late")
    subject.pool.allocate("everything", 6)
    subject.pool.release("everything")
    again = local_sequence("again", 17)
    subject.offer_prompt(again, 0.0)
    assert subject.schedule_chunk(0.0)
    assert again.cached_tokens == 0


def test_what_arrives_is_named_only_when_it_is_committed():
    subject = scheduler(BlockPool(20), identity=MODEL)
    arriving = sequence("a", 9)
    subject.offer(arriving, 0.0)
    subject.grant()
    subject.remove("a")
    assert subject.pool.counts().cached == 0
    start(subject, sequence("b", 9))
    subject.remove("b")
    assert subject.pool.counts().cached == 2


def test_a_preempted_request_goes_on_from_what_is_still_cached():
    subject = scheduler(BlockPool(9), identity=MODEL)
    start(subject, sequence("old", 7, max_tokens=20))
    foreign = sequence("new", 14, max_tokens=14, tenant="x")
    start(subject, foreign)
    for _ in range(100):
        step(subject)
        if subject.preemptions("new"):
            break
    assert (foreign.computed, foreign.blocks) == (0, [])
    for _ in range(100):
        subject.abandon(subject.schedule())
        if foreign.blocks:
            break
        step(subject)
    assert foreign.computed >= 2 * BLOCK


def test_blocks_are_given_early_out_of_plenty_only():
    pool = BlockPool(8)
    subject = scheduler(pool)
    assert not subject.grant_early(local_sequence("long", 7 * BLOCK))
    early = local_sequence("early", 6 * BLOCK)
    assert subject.grant_early(early)
    assert len(early.blocks) == 6
    assert not subject.grant_early(local_sequence("next", BLOCK))
    early.tokens.append(1)
    subject.commit("early")
    assert [span.sequence for span in subject.schedule()] == [early]


def test_partly_arrived_blocks_are_overwritten_before_reuse():
    """Some layers of a prompt whose numbers overflowed came before its first token was sampled."""
    pool = BlockPool(8)
    subject = scheduler(pool)
    early, whole = local_sequence("early", 3 * BLOCK), local_sequence("whole", BLOCK)
    assert subject.grant_early(early)
    assert subject.grant_early(whole)
    blocks = list(early.blocks)
    whole.tokens.append(1)
    subject.commit("whole")
    subject.remove("early")
    subject.remove("whole")
    assert not pool.can_allocate(6)
    assert sorted(pool.take_dirty()) == sorted(blocks)
    pool.cleaned(blocks)
    assert pool.can_allocate(8)


def test_an_early_grant_overtakes_no_request():
    pool = BlockPool(8)
    subject = scheduler(pool)
    start(subject, sequence("running", 5 * BLOCK - 1))
    subject.offer(sequence("waiting", 4 * BLOCK), 0.0)
    assert subject.grant() == []
    assert not subject.grant_early(local_sequence("early", 1))


def test_batch_work_that_waits_keeps_no_other_from_blocks_early():
    subject = scheduler(BlockPool(24))
    start(subject, sequence("running", BLOCK))
    subject.offer(sequence("large", 23 * BLOCK, lane="batch"), 0.0)
    assert subject.grant() == []
    lost = sequence("lost", 23 * BLOCK, lane="batch")
    subject.take_over(lost, 0.0)
    assert not subject.grant_early(local_sequence("its like", 1, lane="batch"))
    assert subject.grant_early(local_sequence("early", 1))


def test_batch_work_gives_its_blocks_up_before_a_newer_stream_of_another_lane():
    subject = scheduler(BlockPool(6))
    start(subject, sequence("old", BLOCK, 20, lane="batch"))
    start(subject, sequence("new", BLOCK, 20))
    while not subject.preemptions("old"):
        step(subject)
    assert subject.preemptions("new") == 0
    later = sequence("later", 1, 2)
    subject.offer(later, 0.0)
    assert subject.grant() == [later]
    subject.commit("later")
    ended = []
    while len(ended) < 3:
        ended += [one.owner for one in step(subject)]
    assert ended == ["later", "new", "old"]


def test_a_preempted_batch_request_comes_back_behind_waiting_requests():
    subject = scheduler(BlockPool(6))
    start(subject, sequence("old", BLOCK, 20, lane="batch"))
    start(subject, sequence("new", BLOCK, 20))
    while not subject.preemptions("old"):
        step(subject)
    large = sequence("large", 5 * BLOCK - 2, 4)
    subject.offer(large, 0.0)
    assert subject.grant() == []
    order = []
    while len(order) < 3:
        for granted in subject.grant():
            subject.commit(granted.owner)
        order += [one.owner for one in step(subject)]
    assert order == ["new", "large", "old"]


def test_a_batch_prompt_without_blocks_delays_no_other():
    subject = scheduler(BlockPool(4))
    start(subject, sequence("running", BLOCK, 40))
    subject.offer_prompt(local_sequence("large", 3 * BLOCK + 1, 2, lane="batch"), 0.0)
    step(subject)
    subject.offer_prompt(local_sequence("small", 2, 2), 1.0)
    assert [one.owner for _ in range(3) for one in step(subject)] == ["small"]


def test_tokens_that_are_computed_again_are_due():
    subject = scheduler(BlockPool(50), chunk=8)
    start(subject, sequence("runs", 5, max_tokens=9))
    assert subject.tokens_due == 0
    subject.take_over(sequence("lost", 20, max_tokens=9), 0.0)
    due = subject.tokens_due
    assert due >= 20
    subject.complete(subject.schedule_chunk(0.0))
    assert subject.tokens_due == due - 8
    subject.remove("lost")
    assert subject.tokens_due == 0
