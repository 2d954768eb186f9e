"""The prefix cache of one pool: the cached blocks that sequences start from, and leave."""

from __future__ import annotations

from engine import metrics
from engine.kv.block_pool import BlockPool
from engine.kv.prefix_digest import Chain
from engine.types.sequence import Sequence


class PrefixCache:
    """Starts sequences at their cached prefix and names the blocks that they fill.

    `identity` is that of the model and its KV layout (`engine.kv.prefix_digest.identity_of`).
    Without an identity the cache looks nothing up and names nothing. `name` is the pool's name in
    the metrics.
    """

    def __init__(self, pool: BlockPool, block_size: int, identity: str | None, name: str) -> None:
        self._pool = pool
        self.block_size = block_size
        self._identity = identity
        self._name = name

    def blocks_for(self, tokens: int) -> int:
        """The number of blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def start(self, sequence: Sequence, headroom: int = 0) -> bool:
        """Give a sequence blocks for all of its tokens, leading with the cached blocks.

        Returns False and takes nothing unless `headroom` more blocks would be left. The last token
        is never taken from the cache, because the next token is sampled from it. Scored tokens and
        the token before them are computed, too.
        """
        tokens = len(sequence.tokens)
        shared = self._match(sequence)
        missing = self.blocks_for(tokens) - len(shared)
        if not self._pool.can_allocate(missing + headroom, keeping=shared):
            return False
        # Shared first: allocating could evict them.
        self._pool.share(sequence.owner, shared)
        sequence.blocks = [*shared, *self._pool.allocate(sequence.owner, missing)]
        sequence.named = len(shared)
        sequence.computed = len(shared) * self.block_size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        metrics.PREFIX_LOOKUP_TOKENS.inc(tokens, pool=self._name)
        metrics.PREFIX_HIT_TOKENS.inc(sequence.computed, pool=self._name)
        return True

    def start_fresh(self, sequence: Sequence) -> None:
        """Give a sequence blocks of its own for all of its tokens.

        Raises OutOfBlocks, and takes none, where the pool has too few.
        """
        needed = self.blocks_for(len(sequence.tokens))
        sequence.blocks = self._pool.allocate(sequence.owner, needed)
        sequence.computed = sequence.named = 0

    def stop(self, sequence: Sequence) -> None:
        """Take a sequence's blocks away, so that it has to be started again."""
        self._pool.release(sequence.owner)
        sequence.blocks = []
        sequence.computed = sequence.named = 0

    def publish(self, sequence: Sequence) -> None:
        """Name the blocks that a running sequence has filled since the last call."""
        full = sequence.computed // self.block_size
        if full <= sequence.named or self._identity is None:
            return
        chain = self._chain(sequence, sequence.computed)
        for index in range(sequence.named, full):
            self._pool.publish(sequence.owner, index, chain.digests[index], sequence.tenant)
        sequence.named = full

    def _match(self, sequence: Sequence) -> list[int]:
        if self._identity is None:
            return []
        scoring = sequence.scoring
        needed = len(sequence.tokens) - 1 if scoring is None else scoring.first - 1
        usable = needed // self.block_size
        chain = self._chain(sequence, usable * self.block_size)
        return self._pool.match(chain.digests[:usable])

    def _chain(self, sequence: Sequence, tokens: int) -> Chain:
        """The sequence's chain, up to that many tokens or beyond."""
        if sequence.chain is None:
            assert self._identity is not None
            sequence.chain = Chain(sequence.tenant, self._identity, self.block_size)
        sequence.chain.follow(sequence.tokens, tokens)
        return sequence.chain
