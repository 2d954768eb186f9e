"""The slots of the decode batch and their KV blocks: given, grown, and taken back. Pure."""

from __future__ import annotations

from decode_pool.batch_size import BatchSize
from decode_pool.entry import DecodeEntries, DecodeEntry, DecodeState, DecodeWait
from engine.kv.block_pool import BlockPhase, BlockPool
from engine.scheduling.prefix_cache import PrefixCache
from engine.types.sequence import Sequence, Span


class BatchSlots:
    """Gives requests a slot with blocks for all of their tokens, while slots and blocks last.

    Each request with a slot may need one more block soon. So a request gets blocks only if one
    more for each of these is left. `in_use` counts the spans of each owner in steps and passes.
    These owners are never preempted.
    """

    def __init__(
        self, pool: BlockPool, cache: PrefixCache, entries: DecodeEntries, batch: BatchSize
    ) -> None:
        self.in_use: dict[str, int] = {}
        self._pool = pool
        self._cache = cache
        self._entries = entries
        self._batch = batch

    @property
    def taken(self) -> int:
        """The number of taken slots: of requests in the batch, or with KV on the way."""
        return self._entries.count(DecodeState.RUNNING, DecodeState.ARRIVING)

    def capacity(self, waiting: list[DecodeEntry]) -> int:
        """The number of leading requests for which an empty batch has slots and blocks."""
        needed = 0
        for ahead, entry in enumerate(waiting):
            needed += self._cache.blocks_for(len(entry.sequence.tokens))
            if not self._pool.can_allocate(needed + ahead):
                return min(ahead, self._batch.limit)
        return self._batch.limit

    def start(self, entry: DecodeEntry) -> bool:
        """Start a request behind its cached prefix; False without a slot or blocks.

        The limit of slow steps does not count for a preempted request.
        """
        headroom = self.taken
        lost = entry.state is DecodeState.PREEMPTED
        most = self._batch.most if lost else self._batch.limit
        if headroom >= most or not self._cache.start(entry.sequence, headroom):
            return False
        entry.state = DecodeState.RUNNING
        return True

    def receive(self, entry: DecodeEntry, reserve: int = 0) -> bool:
        """Give a request blocks for its KV to arrive in; False without a slot or blocks.

        At least `reserve` blocks are left for others.
        """
        headroom, sequence = self.taken, entry.sequence
        needed = self._cache.blocks_for(len(sequence.tokens))
        if headroom >= self._batch.limit:
            return False
        if not self._pool.can_allocate(needed + max(headroom, reserve)):
            return False
        self._cache.start_fresh(sequence)
        self._pool.set_phase(sequence.owner, BlockPhase.LEASED)
        entry.state = DecodeState.ARRIVING
        return True

    @property
    def shortage(self) -> DecodeWait:
        """What a request lacks that got no blocks: a slot, or else blocks."""
        return "slots" if self.taken >= self._batch.limit else "blocks"

    def idle(self) -> list[DecodeEntry]:
        """Running requests that a step or a pass could take up, by rank."""
        entries = self._entries.in_state(DecodeState.RUNNING)
        return [entry for entry in entries if entry.sequence.owner not in self.in_use]

    def span(self, entry: DecodeEntry, count: int) -> Span | None:
        """The span of the request's next tokens; None without blocks for them."""
        sequence = entry.sequence
        end = sequence.computed + count
        if end > self._cache.block_size * len(sequence.blocks) and not self._grow(entry, end):
            return None
        self.in_use[sequence.owner] = 1
        return Span(sequence, sequence.computed, count)

    def spans_ahead(self, before: list[Span], most_rows: int) -> list[Span]:
        """The step behind the step `before`, which was launched and whose tokens are not known.

        A request that ends in that step by its length takes no part, and a request that ends
        otherwise takes part in vain. It is empty where a request lacks more than one token or a
        block, or cannot follow, because no request is preempted.
        """
        rows = {span.sequence.owner: row for row, span in enumerate(before)}
        ahead: list[Span] = []
        block_size = self._cache.block_size
        for entry in self._entries.in_state(DecodeState.RUNNING):
            sequence, row = entry.sequence, rows.get(entry.sequence.owner)
            start = sequence.computed
            if row is not None:
                if len(sequence.tokens) + 1 >= sequence.most_tokens:
                    continue
                start += 1
            if sequence.remaining != 1 or not sequence.may_follow:
                return []
            full = start >= block_size * len(sequence.blocks)
            if full and not self._has_blocks(sequence, start + 1):
                return []
            ahead.append(Span(sequence, start, 1, row))
        if len(ahead) > most_rows:
            return []
        self.take_up(ahead)
        return ahead

    def take_up(self, spans: list[Span]) -> None:
        """Note that a step or a pass has these spans."""
        for span in spans:
            owner = span.sequence.owner
            self.in_use[owner] = self.in_use.get(owner, 0) + 1

    def leave(self, spans: list[Span]) -> None:
        """Note that a step or a pass has ended."""
        for span in spans:
            owner = span.sequence.owner
            left = self.in_use.pop(owner, 0) - 1
            if left > 0:
                self.in_use[owner] = left

    def _has_blocks(self, sequence: Sequence, tokens: int) -> bool:
        """Grow to blocks for that many tokens; False where too few are free."""
        missing = self._cache.blocks_for(tokens) - len(sequence.blocks)
        if missing <= 0:
            return True
        if not self._pool.can_allocate(missing):
            return False
        sequence.blocks = [*sequence.blocks, *self._pool.allocate(sequence.owner, missing)]
        return True

    def _grow(self, entry: DecodeEntry, tokens: int) -> bool:
        """Grow to blocks for that many tokens; preempts the last request by rank if needed.

        False if the request itself was preempted, or must wait for arriving KV or for a pass that
        writes to its blocks.
        """
        while not self._has_blocks(entry.sequence, tokens):
            last = self.idle()[-1]
            if last is entry and self._may_wait(entry):
                return False
            self._preempt(last)
            if last is entry:
                return False
        return True

    def _may_wait(self, entry: DecodeEntry) -> bool:
        """Whether blocks will come anyway: no other request runs, or a later one is in a pass."""
        running = self._entries.in_state(DecodeState.RUNNING)
        others = [other for other in running if other is not entry]
        return not others or others[-1].rank > entry.rank

    def _preempt(self, entry: DecodeEntry) -> None:
        self._cache.stop(entry.sequence)
        entry.state = DecodeState.PREEMPTED
        entry.preemptions += 1
