"""The decode scheduler as a state machine: any order of offers, commits, steps and cancels."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.errors import Overloaded, PromptTooLong
from engine.kv.block_pool import BlockPool
from engine.scheduling.prompt_queue import MOST_PASSES
from engine.types.sequence import Sequence
from tests.decode_pool.scheduling import (
    BLOCK,
    MODEL,
    local_sequence,
    scheduler,
    sequence,
    step,
)
from tests.paper_kv import PaperKv


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
            self.subject.check_feasible(new)
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
            self.subject.check_feasible(new)
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
        before = self.pool.blocks_of(owner)
        self._remove(owner)
        assert self.pool.blocks_of(owner) == (before if owner in in_step else ())

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
            assert self.pool.blocks_of(span.sequence.owner) == tuple(span.sequence.blocks)

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
