"""Which tokens a decode replica computes next, and who gets blocks. Pure: no clock, no I/O.

A request's life here:

    grant_early ───────────────────┐
    offer ─▶ waiting ──grant──▶ arriving ──commit──▶ running ─▶ gone
                                                     ▲ │  ▲
    offer_prompt ─▶ waiting ────── its turn ─────────┘ (out of blocks: the last)
                                                       ▼  │
    take_up ──────────────────────────────────────▶ preempted

A preempted request gives up its blocks and is computed again, in chunks, from its tokens, as far
as they are no longer in the prefix cache. It goes before every waiting one, but one of the batch
lane only before its like, as that lane gives way to the others everywhere. So does one that was
streaming on a replica that was lost, and is taken up here. A local request, whose prompt is
computed here, starts at its turn among the prompts, by `engine/scheduling/prompt_order.py`; a more
urgent one
may overtake a pass that was begun, between two layers. `remove` ends a request in any state.
`decode_pool/batching.py` says who may leave *waiting*.
"""

from __future__ import annotations

from decode_pool.batch_size import BatchSize
from decode_pool.batching import Batching, Candidate, Continuous, Queue
from decode_pool.entry import DecodeEntries, DecodeEntry, DecodeState, in_order
from engine.errors import PromptTooLong
from engine.kv.block_pool import BlockPhase, BlockPool
from engine.scheduling.prefix_cache import PrefixCache
from engine.scheduling.prompt_order import PromptOrder
from engine.scheduling.prompt_queue import PromptQueue, QueuePosition
from engine.types.lane_quota import require_room
from engine.types.sequence import Sequence, Span


class DecodeScheduler:
    """Batching over a block pool, with preemption of the last; continuous unless said otherwise.

    `identity` is that of the model and its KV layout; without it there is no prefix cache.
    """

    def __init__(
        self,
        pool: BlockPool,
        order: PromptOrder,
        batch: BatchSize,
        *,
        block_size: int,
        max_waiting: int,
        chunk_tokens: int,
        identity: str | None = None,
        batching: Batching | None = None,
    ) -> None:
        self.pool = pool
        self.order = order
        self.batch = batch
        self._batching = batching or Continuous()
        self._cache = PrefixCache(pool, block_size, identity, "decode")
        self._max_waiting = max_waiting
        self._chunk_tokens = chunk_tokens
        self._entries = DecodeEntries()
        self._offers: list[DecodeEntry] = []
        self._under_way: set[str] = set()
        self._turns = PromptQueue(order)
        self._blocked: DecodeEntry | None = None
        self._leaving: set[str] = set()
        self._arrivals = 0

    @property
    def waiting(self) -> int:
        """Requests that hold no blocks: offered, or preempted."""
        return self._entries.count(DecodeState.WAITING) + self._entries.count(DecodeState.PREEMPTED)

    @property
    def running(self) -> int:
        """Requests in the batch or with their KV on the way."""
        return self._entries.count(DecodeState.RUNNING) + self._entries.count(DecodeState.ARRIVING)

    @property
    def streams(self) -> int:
        """Requests that a step gives a token, once what they lost is computed again."""
        return sum(not entry.is_prompt for entry in self._entries.in_state(DecodeState.RUNNING))

    @property
    def batch_streams(self) -> int:
        """Those of the batch lane among them."""
        running = (one for one in self._entries.in_state(DecodeState.RUNNING) if not one.is_prompt)
        return sum(entry.batch for entry in running)

    @property
    def tokens_due(self) -> int:
        """Prompt tokens that wait or are being computed here."""
        return self._turns.tokens_due

    @property
    def batch_tokens_due(self) -> int:
        """Those of the batch lane among them."""
        return self._turns.batch_tokens_due

    def places(self, now: float) -> dict[str, QueuePosition]:
        """Where the prompts that wait to be computed here are in their lines."""
        return self._turns.places(now)

    def owners(self) -> frozenset[str]:
        """Everyone this scheduler answers for."""
        return frozenset(self._entries) | self._leaving

    def preemptions(self, owner: str) -> int:
        """How often this request lost its blocks."""
        return self._entries[owner].preemptions

    def check_fits(self, sequence: Sequence) -> None:
        """PromptTooLong if the request could not run to its end even alone."""
        needed = self.most_blocks(sequence)
        if needed > self.pool.total:
            raise PromptTooLong(
                f"prompt and answer need {needed} KV blocks, the decode pool has {self.pool.total}"
            )

    def most_blocks(self, sequence: Sequence) -> int:
        """Blocks for prompt and answer; the last token's own KV is never needed."""
        return self._cache.blocks_for(sequence.most_tokens - 1)

    def offer(self, sequence: Sequence, now: float) -> None:
        """Queue a request whose KV waits elsewhere; its tokens are prompt and first token.

        Overloaded if the queue is full.
        """
        self._offers.append(self._enter(sequence, now, local=False))

    def offer_prompt(self, sequence: Sequence, now: float) -> None:
        """Queue a request whose prompt is computed here. Overloaded if the queue is full."""
        self._enter(sequence, now, local=True)
        self._turns.add(sequence, now)

    def take_up(self, sequence: Sequence, now: float) -> None:
        """Queue a request that has output already, from elsewhere. Overloaded as the others."""
        self._enter(sequence, now, local=False).state = DecodeState.PREEMPTED

    def form_batch(self, now: float) -> float | None:
        """Let the next batch form; the seconds until one is due by time alone, or None."""
        waiting = [] if self._batching.continuous else self._entries.in_state(DecodeState.WAITING)
        if not waiting:
            return None
        candidates = [
            Candidate(entry.sequence.owner, entry.arrived_s, entry.sequence.batch_window_s)
            for entry in waiting
        ]
        return self._batching.form(Queue(candidates, self._room(waiting)), now)

    def grant_early(self, sequence: Sequence) -> bool:
        """Give blocks at once to a request whose prompt is still being computed elsewhere.

        Only out of plenty: nobody who goes before it was offered or lost its blocks, and a quarter
        of the pool is left. Its tokens are the prompt alone; the first one is to be there at
        `commit`.
        """
        entry = DecodeEntry(sequence, self._arrivals + 1)
        if self._entries.lost_before(entry) or any(o.place < entry.place for o in self._offers):
            return False
        if not self._expect(entry, reserve=self.pool.total // 4):
            return False
        self._arrivals += 1
        self._entries[sequence.owner] = entry
        return True

    def grant(self) -> list[Sequence]:
        """Give blocks to requests whose KV waits elsewhere, in order, while there is room."""
        granted = []
        for entry in self._joining():
            # A prompt whose turn it is, and that waits for room for longer.
            earlier = self._blocked is not None and self._blocked.place < entry.place
            if earlier or self._entries.lost_before(entry) or not self._expect(entry):
                break
            self._offers.remove(entry)
            granted.append(entry.sequence)
        return granted

    def commit(self, owner: str) -> None:
        """The KV of all tokens but the last has arrived: the request joins the batch."""
        entry = self._entries[owner]
        entry.sequence.computed = len(entry.sequence.tokens) - 1
        entry.state = DecodeState.RUNNING
        self.pool.set_phase(owner, BlockPhase.RUNNING)
        self._cache.publish(entry.sequence)

    def schedule(self) -> list[Span]:
        """The next step: a token for each running request whose other tokens are computed."""
        self._resume()
        spans = []
        for entry in self._running():
            # Preempted since, to make room for an older one?
            if entry.state is DecodeState.RUNNING and entry.sequence.remaining == 1:
                spans += self._span(entry, 1)
        return spans

    def schedule_chunk(self, now: float, most_tokens: int | None = None) -> list[Span]:
        """A pass beside the steps: first for requests that lost their blocks, then for prompts.

        With others under way, one that should overtake them; empty where there is none. Of
        prompts it has at most `most_tokens`.
        """
        self._resume()
        if self._turns.full:
            return []
        spans = self._lost_spans()
        if not spans and not self._recomputing():
            spans = self._prompt_spans(now, most_tokens)
        self._turns.begin(spans)
        return spans

    def advanced(self, spans: list[Span], seconds: float) -> None:
        """Note that a pass was computed for so long, the steps beside it included."""
        self._turns.advanced(spans, seconds)

    def wanted(self, spans: list[Span]) -> bool:
        """Whether anybody of a pass under way is still here."""
        return any(span.sequence.owner in self._entries for span in spans)

    def complete(self, spans: list[Span]) -> list[Span]:
        """Note that a step or a pass was computed; returns the spans of requests still here."""
        self._end(spans, computed=True)
        kept = [span for span in spans if span.sequence.owner in self._entries]
        for span in kept:
            span.sequence.computed += span.count
            self._cache.publish(span.sequence)
        return kept

    def abandon(self, spans: list[Span]) -> None:
        """Note that a step or a pass has ended and computed nothing."""
        self._end(spans, computed=False)

    def remove(self, owner: str) -> None:
        """Forget a request and free its blocks, after what is computed in them. Idempotent."""
        entry = self._entries.pop(owner, None)
        self._batching.left(owner)
        if entry is not None and entry.state is DecodeState.WAITING and not entry.local:
            self._offers.remove(entry)
        if entry is self._blocked:
            self._blocked = None
        self._turns.drop(owner)
        if entry is not None and entry.state is DecodeState.ARRIVING:
            # Of a prompt whose numbers overflowed some layers may have come before that was known.
            self.pool.condemn(owner)
        if owner in self._under_way:
            if entry is not None:
                self._leaving.add(owner)
            return
        self.pool.release(owner)

    def _end(self, spans: list[Span], *, computed: bool) -> None:
        self._turns.end(spans, computed=computed)
        for span in spans:
            owner = span.sequence.owner
            self._under_way.discard(owner)
            if owner in self._leaving:
                self._leaving.discard(owner)
                self.pool.release(owner)

    def _room(self, waiting: list[DecodeEntry]) -> int:
        """How many of these a batch has room for, counted as `_expect` does."""
        needed = 0
        for place, entry in enumerate(waiting):
            needed += self._cache.blocks_for(len(entry.sequence.tokens))
            if not self.pool.can_allocate(needed + place):
                return min(place, self.batch.limit)
        return self.batch.limit

    def _enter(self, sequence: Sequence, now: float, *, local: bool) -> DecodeEntry:
        waiting, batch = self._entries.count(DecodeState.WAITING), sequence.lane == "batch"
        require_room(waiting, self._max_waiting, "requests wait", batch=batch)
        self._arrivals += 1
        entry = DecodeEntry(sequence, self._arrivals, now, local)
        self._entries[sequence.owner] = entry
        return entry

    def leaving(self, owner: str) -> bool:
        """Whether a step or a pass still writes to the blocks of a request that was removed."""
        return owner in self._leaving

    def _running(self) -> list[DecodeEntry]:
        """Those that a step or a pass could take up, in order."""
        entries = self._entries.in_state(DecodeState.RUNNING)
        return [entry for entry in entries if entry.sequence.owner not in self._under_way]

    def _span(self, entry: DecodeEntry, count: int) -> list[Span]:
        """The request's next tokens, if there is room for them."""
        sequence = entry.sequence
        if not self._make_room(entry, sequence.computed + count):
            return []
        self._under_way.add(sequence.owner)
        return [Span(sequence, sequence.computed, count)]

    def _lost_spans(self) -> list[Span]:
        """Tokens of requests that lost their blocks; they were streaming already."""
        budget = self._chunk_tokens
        spans: list[Span] = []
        for entry in self._running():
            count = min(entry.sequence.remaining, budget)
            lost = entry.sequence.remaining > 1 and not entry.is_prompt
            if entry.state is DecodeState.RUNNING and lost and count:
                added = self._span(entry, count)
                budget -= count if added else 0
                spans += added
        return spans

    def _recomputing(self) -> bool:
        owners = self._turns.owners & self._entries.keys()
        return any(not self._entries[owner].is_prompt for owner in owners)

    def _prompt_spans(self, now: float, most_tokens: int | None) -> list[Span]:
        if not self._turns.may_take:
            return []
        self._blocked = None
        in_step = self._under_way - self._turns.owners
        lost = (entry.sequence.owner for entry in self._entries.in_state(DecodeState.PREEMPTED))
        spans = self._turns.take(now, self._admit, {*in_step, *lost}, most_tokens)
        self._under_way.update(span.sequence.owner for span in spans)
        return spans

    def _admit(self, owner: str) -> int:
        """Start a waiting prompt if there is room and nobody waits for longer; its tokens."""
        entry = self._entries[owner]
        if entry.state is DecodeState.RUNNING:
            return entry.sequence.remaining
        older = any(offer.place < entry.place for offer in self._joining())
        if self._blocked is not None and (entry.batch or not self._blocked.batch):
            return 0
        if older or self._entries.lost_before(entry):
            return 0
        if not self._batching.may_join(owner):
            return 0
        if not self._start(entry):
            self._blocked = entry
            return 0
        return entry.sequence.remaining

    def _joining(self) -> list[DecodeEntry]:
        """Those that were offered and may join now, in order."""
        may_join = self._batching.may_join
        return in_order(one for one in self._offers if may_join(one.sequence.owner))

    def _resume(self) -> None:
        others_wait = any(not one.batch for one in (*self._joining(), self._blocked) if one)
        for entry in self._entries.in_state(DecodeState.PREEMPTED):
            if (entry.batch and others_wait) or not self._start(entry):
                break

    def _start(self, entry: DecodeEntry) -> bool:
        """Run a request if it fits and, as in `_expect`, each running one keeps a block to grow."""
        headroom = self.running
        if headroom >= self.batch.limit or not self._cache.start(entry.sequence, headroom):
            return False
        entry.state = DecodeState.RUNNING
        return True

    def _expect(self, entry: DecodeEntry, reserve: int = 0) -> bool:
        """Give a request blocks for its KV to arrive in, if it fits and that many are left."""
        headroom, sequence = self.running, entry.sequence
        needed = self._cache.blocks_for(len(sequence.tokens))
        wanted = needed + max(headroom, reserve)
        if headroom >= self.batch.limit or not self._batching.may_join(sequence.owner):
            return False
        if not self.pool.can_allocate(wanted):
            return False
        self._cache.start_fresh(sequence)
        self.pool.set_phase(sequence.owner, BlockPhase.LEASED)
        entry.state = DecodeState.ARRIVING
        return True

    def _make_room(self, entry: DecodeEntry, tokens: int) -> bool:
        """Blocks for that many tokens, preempting the last in order where none are free.

        False when the request itself was preempted, or must wait: for KV on its way to land, or
        for what is under way, whose blocks are being written.
        """
        sequence = entry.sequence
        while (missing := self._cache.blocks_for(tokens) - len(sequence.blocks)) > 0:
            if self.pool.can_allocate(missing):
                sequence.blocks = [*sequence.blocks, *self.pool.allocate(sequence.owner, missing)]
                continue
            last = self._running()[-1]
            if last is entry and self._may_wait(entry):
                return False
            self._preempt(last)
            if last is entry:
                return False
        return True

    def _may_wait(self, entry: DecodeEntry) -> bool:
        """Whether blocks will come all the same: it is alone, or a later one is in a pass."""
        others = [
            other for other in self._entries.in_state(DecodeState.RUNNING) if other is not entry
        ]
        return not others or others[-1].place > entry.place

    def _preempt(self, entry: DecodeEntry) -> None:
        self._cache.stop(entry.sequence)
        entry.state = DecodeState.PREEMPTED
        entry.preemptions += 1
