"""Schedules the tokens of a decode replica. Pure: no clock, no I/O.

A request's life here:

    grant_early ───────────────────┐
    offer ─▶ waiting ──grant──▶ arriving ──commit──▶ running ─▶ gone
                                                     ▲ │  ▲
    offer_prompt ─▶ waiting ────── its turn ─────────┘ (out of blocks: the last)
                                                       ▼  │
    take_over ────────────────────────────────────▶ preempted

A preempted request gives up its blocks. It is computed again from its tokens, in chunks, as far
as its KV is no longer in the prefix cache. It goes before every waiting request, but in the batch
lane only before requests of that lane. A request that was streaming on a lost replica is treated
in the same way. A local request has its prompt computed here, at its turn by
`engine/scheduling/prompt_order.py`; a more urgent prompt may overtake a pass between two layers.
`remove` ends a request in any state.

A stream that is computed again stands still meanwhile (`decode_pool/lost_streams.py`). So no pass
overtakes its pass.

`decode_pool/admission.py` chooses requests that leave *waiting*. `decode_pool/batch_slots.py` gives
them blocks.
"""

from __future__ import annotations

from decode_pool.admission import DecodeAdmission
from decode_pool.batch_size import BatchSize
from decode_pool.batch_slots import BatchSlots
from decode_pool.batching import Batching, Continuous
from decode_pool.entry import DecodeEntries, DecodeState, DecodeWait
from decode_pool.lost_streams import LostStreams
from engine.errors import PromptTooLong
from engine.kv.block_pool import BlockPhase, BlockPool
from engine.scheduling.pass_scheduler import PassScheduler
from engine.scheduling.prefix_cache import PrefixCache
from engine.scheduling.prompt_order import PromptOrder
from engine.types.sequence import Sequence, Span

# A bound: early grants leave one block in so many, so that early pulls never block each other.
_EARLY_RESERVE = 4


class DecodeScheduler(PassScheduler):
    """Batching over a block pool, with preemption of the last request; continuous by default.

    `identity` names the model and its KV layout; without it there is no prefix cache.
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
        super().__init__(pool, order)
        self.batch = batch
        self._cache = PrefixCache(pool, block_size, identity, "decode")
        self._entries = DecodeEntries()
        self._slots = BatchSlots(pool, self._cache, self._entries, batch)
        self._lost = LostStreams(self._entries, self._slots, self._prompts, chunk_tokens)
        self._admission = DecodeAdmission(
            self._entries, self._slots, batching or Continuous(), max_waiting
        )

    @property
    def waiting(self) -> int:
        """The number of requests without blocks: offered, or preempted."""
        return self._entries.count(DecodeState.WAITING, DecodeState.PREEMPTED)

    @property
    def running(self) -> int:
        """The number of requests in the batch, or with KV on the way."""
        return self._slots.taken

    @property
    def tokens_due(self) -> int:
        """Tokens of prompts and of preempted requests that wait or are being computed."""
        return super().tokens_due + sum(one.sequence.remaining for one in self._lost.every())

    @property
    def batch_tokens_due(self) -> int:
        """The part of `tokens_due` that belongs to the batch lane."""
        lost = (one.sequence.remaining for one in self._lost.every() if one.batch)
        return super().batch_tokens_due + sum(lost)

    @property
    def streams(self) -> int:
        """The number of running requests with a first token, with recomputed requests."""
        return sum(not entry.is_prompt for entry in self._entries.in_state(DecodeState.RUNNING))

    @property
    def batch_streams(self) -> int:
        """The part of `streams` that belongs to the batch lane."""
        running = (one for one in self._entries.in_state(DecodeState.RUNNING) if not one.is_prompt)
        return sum(entry.batch for entry in running)

    def owners(self) -> frozenset[str]:
        """The owners of all blocks of this scheduler."""
        return frozenset(self._entries) | self._leaving

    def preemptions(self, owner: str) -> int | None:
        """The number of times that this request lost its blocks; None if it is not here."""
        entry = self._entries.get(owner)
        return None if entry is None else entry.preemptions

    def waited_for(self, owner: str) -> DecodeWait:
        """What kept this request waiting last; `nothing` if it is not here."""
        entry = self._entries.get(owner)
        return "nothing" if entry is None else entry.waited_for

    def check_feasible(self, sequence: Sequence) -> None:
        """PromptTooLong if the request could not run to its end even alone."""
        needed = self.most_blocks(sequence)
        if needed > self.pool.total:
            raise PromptTooLong(
                f"the prompt is too long: with the answer it needs {needed} KV blocks, "
                f"the decode pool has {self.pool.total}"
            )

    def most_blocks(self, sequence: Sequence) -> int:
        """Blocks for prompt and answer; the last token's own KV is never needed."""
        return self._cache.blocks_for(sequence.most_tokens - 1)

    def offer(self, sequence: Sequence, now: float) -> None:
        """Queue a request whose KV waits elsewhere; its tokens are prompt and first token.

        Overloaded if the queue is full.
        """
        self._admission.offer(sequence, now)

    def offer_prompt(self, sequence: Sequence, now: float) -> None:
        """Queue a request whose prompt is computed here. Overloaded if the queue is full."""
        self._admission.enter(sequence, now, local=True)
        self._prompts.add(sequence, now)

    def take_over(self, sequence: Sequence, now: float) -> None:
        """Queue a request that failed over with output. Overloaded if the queue is full."""
        self._admission.enter(sequence, now, local=False).state = DecodeState.PREEMPTED

    def form_batch(self, now: float) -> float | None:
        """Let the next batch form; returns the seconds until one is due by time, or None."""
        return self._admission.form_batch(now)

    def grant_early(self, sequence: Sequence) -> bool:
        """Give blocks at once to a request whose prompt is still being computed elsewhere.

        It must overtake no request, and leave a quarter of the pool. The sequence's
        tokens are the prompt alone; the first token is to be there at `commit`.
        """
        return self._admission.grant_early(sequence, self.pool.total // _EARLY_RESERVE)

    def grant(self) -> list[Sequence]:
        """Give blocks to requests whose KV waits elsewhere, in order, while blocks last."""
        return self._admission.grant()

    def commit(self, owner: str) -> None:
        """Let a request join the batch: the KV of all its tokens but the last has arrived."""
        entry = self._entries[owner]
        entry.sequence.computed = len(entry.sequence.tokens) - 1
        entry.state = DecodeState.RUNNING
        self.pool.set_phase(owner, BlockPhase.RUNNING)
        self._cache.publish(entry.sequence)

    def schedule(self) -> list[Span]:
        """The next step: a token for each running request whose other tokens are computed."""
        self._admission.restart_preempted()
        spans = []
        for entry in self._slots.idle():
            # It may have been preempted since, so that an older request could grow.
            if entry.state is DecodeState.RUNNING and entry.sequence.remaining == 1:
                span = self._slots.span(entry, 1)
                if span is not None:
                    spans.append(span)
        return spans

    def is_followed(self, spans: list[Span], most_rows: int) -> bool:
        """Whether the next step may be scheduled before the results of this step are known.

        It has at most `most_rows`, and no prompt or lost stream waits for the end of this step.
        """
        if not all(span.sequence.may_follow for span in spans):
            return False
        return len(spans) <= most_rows and self._is_decoding_alone

    def schedule_ahead(self, spans: list[Span], most_rows: int) -> list[Span]:
        """The next step, before the results of this step; empty where they must be awaited."""
        return self._slots.spans_ahead(spans, most_rows) if self._is_decoding_alone else []

    def schedule_chunk(
        self, now: float, most_tokens: int | None = None, *, mixes: bool = False
    ) -> list[Span]:
        """A pass beside the steps: first for preempted requests, then for prompts.

        With other passes under way, a pass that should overtake them; empty if there is none.
        A pass has at most `most_tokens` of prompts. Where the next step `mixes`, they wait for it.
        """
        self._admission.restart_preempted()
        if self.recomputing:
            return []
        spans = self._lost.spans()
        waits = mixes and self._may_mix
        if not spans and not self._lost.in_passes() and not waits:
            spans = self._prompt_spans(now, most_tokens)
        self._prompts.begin(spans)
        return spans

    def schedule_mixed(self, rows: list[Span], now: float, most_tokens: int) -> list[Span]:
        """A pass of at most `most_tokens` of prompts, and behind them the rows of a step.

        Empty where no prompt can be computed now, or a pass is under way. Streams that stand still
        have passes of their own.
        """
        prompts = self._prompt_spans(now, most_tokens) if self._may_mix else []
        if not prompts:
            return []
        spans = [*prompts, *rows]
        self._prompts.begin(spans, len(rows))
        return spans

    @property
    def _may_mix(self) -> bool:
        return not (self._prompts.owners or self._lost.every())

    @property
    def recomputing(self) -> bool:
        """Whether the newest pass computes streams again; those of the batch lane do not count."""
        return any(not entry.batch for entry in self._lost.in_passes())

    def wanted(self, spans: list[Span]) -> bool:
        """Whether any request of a pass is still here."""
        return any(span.sequence.owner in self._entries for span in spans)

    def complete(self, spans: list[Span]) -> list[Span]:
        """Note that a step or a pass was computed; returns the spans of requests still here."""
        self._end(spans, computed=True)
        kept = [span for span in spans if span.sequence.owner in self._entries]
        for span in kept:
            span.sequence.computed += span.count
            self._cache.publish(span.sequence)
        return kept

    def remove(self, owner: str) -> None:
        """Forget a request and free its blocks, after the pass that uses them. Idempotent."""
        entry = self._entries.pop(owner, None)
        if entry is not None:
            self._admission.forget(entry)
        self._prompts.drop(owner)
        if entry is not None and entry.state is DecodeState.ARRIVING:
            # Layers of a prompt with overflowed numbers may come before the fault is known.
            self.pool.condemn(owner)
        if owner in self._slots.in_use:
            if entry is not None:
                self._leaving.add(owner)
            return
        self.pool.release(owner)

    @property
    def _is_decoding_alone(self) -> bool:
        """Whether no prompt and no lost stream waits for the end of a step."""
        return not (self._entries.count(DecodeState.PREEMPTED) or self._prompts.tokens_due)

    def _end(self, spans: list[Span], *, computed: bool) -> None:
        self._slots.leave(spans)
        super()._end(spans, computed=computed)

    def _is_in_use(self, owner: str) -> bool:
        return owner in self._slots.in_use

    def _prompt_spans(self, now: float, most_tokens: int | None) -> list[Span]:
        if not self._prompts.may_take:
            return []
        self._admission.unblock_prompts()
        in_step = self._slots.in_use.keys() - self._prompts.owners
        lost = (entry.sequence.owner for entry in self._entries.in_state(DecodeState.PREEMPTED))
        admit = self._admission.admit_prompt
        spans = self._prompts.take(now, admit, {*in_step, *lost}, most_tokens)
        self._slots.take_up(spans)
        return spans
