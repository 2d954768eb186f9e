"""The decode scheduler: grants and preemption by example, everything else as a state machine."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks import BlockPool
from engine.errors import Overloaded, PromptTooLong
from engine.prompt_turns import MOST_PASSES
from engine.sequence import Sequence
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
from tests.paper_kv import PaperKv


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
    subject.check_fits(sequence("a", 5, max_tokens=4))
    with pytest.raises(PromptTooLong, match="need 3 KV blocks, the decode pool has 2"):
        subject.check_fits(sequence("a", 5, max_tokens=5))


def test_a_full_queue_refuses():
    subject = scheduler(BlockPool(9), waiting=1)
    subject.offer(sequence("a", 4), 0.0)
    with pytest.raises(Overloaded):
        subject.offer(sequence("b", 4), 0.0)


def test_batch_work_leaves_places_in_the_queue_to_the_others():
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


def test_a_local_request_waits_its_turn_and_an_evicted_prefix_is_computed_again():
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


def test_what_half_arrived_is_overwritten_before_anybody_gets_its_blocks():
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


def test_nobody_is_overtaken_by_an_early_one():
    pool = BlockPool(8)
    subject = scheduler(pool)
    start(subject, sequence("running", 5 * BLOCK - 1))
    subject.offer(sequence("waiting", 4 * BLOCK), 0.0)
    assert subject.grant() == []
    assert not subject.grant_early(local_sequence("early", 1))


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


def test_what_lost_its_blocks_in_the_batch_lane_comes_back_behind_whoever_waits_for_room():
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


def test_a_batch_prompt_without_room_holds_up_no_other():
    subject = scheduler(BlockPool(4))
    start(subject, sequence("running", BLOCK, 40))
    subject.offer_prompt(local_sequence("large", 3 * BLOCK + 1, 2, lane="batch"), 0.0)
    step(subject)
    subject.offer_prompt(local_sequence("small", 2, 2), 1.0)
    assert [one.owner for _ in range(3) for one in step(subject)] == ["small"]


class DecodeMachine(RuleBasedStateMachine):
    """Offers, commits, steps and cancels in any order, over a pool that is too small."""

    def __init__(self, batching=None):
        super().__init__()
        self.pool = BlockPool(9)
        self.subject = scheduler(self.pool, batch=4, waiting=6, identity=MODEL, batching=batching)
        self.kv = PaperKv(self.pool, BLOCK, MODEL)
        self.local: set[str] = set()
        self.alive: dict[str, Sequence] = {}
        self.arriving: set[str] = set()
        self.early: set[str] = set()
        self.step = []
        self.chunks = []
        self.now = 0.0
        self.count = 0

    @property
    def spans(self):
        return self.step + [span for chunk in self.chunks for span in chunk]

    @rule(
        prompt=st.integers(1, 40),
        max_tokens=st.integers(2, 20),
        local=st.booleans(),
        lane=st.sampled_from(["interactive", "batch"]),
    )
    def offer(self, prompt, max_tokens, local, lane):
        self.count += 1
        make = local_sequence if local else sequence
        new = make(f"r{self.count}", prompt, max_tokens, lane=lane)
        try:
            self.subject.check_fits(new)
            if local:
                self.subject.offer_prompt(new, self.now)
            else:
                self.subject.offer(new, self.now)
        except PromptTooLong:
            assert prompt + max_tokens - 1 > 9 * BLOCK
        except Overloaded:
            pass
        else:
            self.alive[new.owner] = new
            if local:
                self.local.add(new.owner)

    @rule()
    def grant(self):
        for new in self.subject.grant():
            assert len(new.blocks) * BLOCK >= len(new.tokens)
            assert new.owner not in self.local
            self.kv.receive(new, 0, len(new.tokens) - 1)
            self.arriving.add(new.owner)

    @rule(prompt=st.integers(1, 40), max_tokens=st.integers(2, 20))
    def grant_early(self, prompt, max_tokens):
        """Its tokens are the prompt alone; the first one comes with the last of the KV."""
        self.count += 1
        new = local_sequence(f"r{self.count}", prompt, max_tokens)
        free = self.pool.free + self.pool.counts().cached
        try:
            self.subject.check_fits(new)
        except PromptTooLong:
            return
        if self.subject.grant_early(new):
            assert free - len(new.blocks) >= self.pool.total // 4
            self.kv.receive(new, 0, prompt)
            self.alive[new.owner] = new
            self.arriving.add(new.owner)
            self.early.add(new.owner)
        else:
            assert not new.blocks

    @precondition(lambda self: self.arriving)
    @rule(data=st.data())
    def commit(self, data):
        self._commit(data.draw(st.sampled_from(sorted(self.arriving))))

    def _commit(self, owner):
        self.arriving.discard(owner)
        if owner in self.early:
            self.alive[owner].tokens.append(0)
        self.subject.commit(owner)

    @precondition(lambda self: not self.step)
    @rule()
    def schedule(self):
        self.step = self.subject.schedule()
        assert all(span.count == 1 for span in self.step)

    @rule(later=st.sampled_from([0.0, 0.5, 20.0]))
    def schedule_chunk(self, later):
        self.now += later
        chunk = self.subject.schedule_chunk(self.now)
        self.chunks += [chunk] if chunk else []
        assert sum(span.count for span in chunk) <= 6
        assert len(self.chunks) <= MOST_PASSES

    @precondition(lambda self: self.step)
    @rule(failed=st.booleans())
    def complete(self, failed):
        spans, self.step = self.step, []
        self._complete(spans, failed)

    @precondition(lambda self: self.chunks)
    @rule(failed=st.booleans(), seconds=st.floats(0, 2))
    def complete_chunk(self, failed, seconds):
        spans = self.chunks.pop()
        self.subject.advanced(spans, seconds)
        self._complete(spans, failed)

    def _complete(self, spans, failed):
        if failed:
            self.subject.abandon(spans)
            for span in spans:
                self._remove(span.sequence.owner)
            return
        for span in spans:
            self.kv.compute(span)
        for span in self.subject.complete(spans):
            if span.sequence.remaining == 0:
                self._append(span.sequence)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def remove(self, data):
        owner = data.draw(st.sampled_from(sorted(self.alive)))
        in_step = {span.sequence.owner for span in self.spans}
        held = self.pool.held(owner)
        self._remove(owner)
        assert self.pool.held(owner) == (held if owner in in_step else ())

    @precondition(lambda self: not self.spans)
    @rule()
    def drain(self):
        """With nothing new, everything that was offered runs to its end: no loss, no deadlock."""
        for _ in range(2000):
            if not self.alive:
                break
            self.now += 1.0
            self.scrub()
            self.subject.form_batch(self.now)
            self.grant()
            for owner in sorted(self.arriving):
                self._commit(owner)
            for done in step(self.subject, self.kv):
                del self.alive[done.owner]
        assert not self.alive
        self.scrub()
        assert self.pool.counts().used == 0

    @rule()
    def scrub(self):
        """As a loop does before each step."""
        self.pool.cleaned(self.pool.take_dirty())

    @invariant()
    def what_is_under_way_keeps_its_blocks(self):
        owners = [span.sequence.owner for span in self.spans]
        assert len(owners) == len(set(owners))
        for span in self.spans:
            assert span.start == span.sequence.computed
            assert len(span.sequence.blocks) * BLOCK >= span.start + span.count
            assert self.pool.held(span.sequence.owner) == tuple(span.sequence.blocks)

    @invariant()
    def accounts(self):
        assert self.pool.orphaned(self.subject.owners()) == 0
        assert self.subject.running <= 4
        assert self.subject.running + self.subject.waiting == len(self.alive)
        self.kv.check_names()
        written = [
            span.sequence.blocks[place // BLOCK]
            for span in self.spans
            for place in range(span.start, span.start + span.count, BLOCK)
        ]
        assert len(written) == len(set(written))

    def _append(self, sequence: Sequence) -> None:
        sequence.tokens.append(0)
        if sequence.output_tokens == sequence.sampling.max_tokens:
            self._remove(sequence.owner)

    def _remove(self, owner: str) -> None:
        self.subject.remove(owner)
        self.alive.pop(owner, None)
        self.arriving.discard(owner)


DecodeMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
TestDecodeScheduler = DecodeMachine.TestCase
