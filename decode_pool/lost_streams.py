"""The streams that lost their KV, and the order in which they are computed again. Pure.

Such a stream stands still meanwhile. These streams take turns: a turn has all streams that stand
still when it begins, shortest first.
"""

from __future__ import annotations

from decode_pool.batch_slots import BatchSlots
from decode_pool.entry import DecodeEntries, DecodeEntry, DecodeState
from engine.scheduling.prompt_queue import PromptQueue
from engine.types.sequence import Span


class LostStreams:
    """Preempted streams, and streams of a lost replica, among the entries of a scheduler.

    A pass over them has at most `chunk_tokens`.
    """

    def __init__(
        self, entries: DecodeEntries, slots: BatchSlots, prompts: PromptQueue, chunk_tokens: int
    ) -> None:
        self._entries = entries
        self._slots = slots
        self._prompts = prompts
        self._chunk_tokens = chunk_tokens
        self._turn: frozenset[str] = frozenset()

    def every(self) -> list[DecodeEntry]:
        """The requests that are computed again, in passes or not."""
        running = self._entries.in_state(DecodeState.RUNNING)
        entries = self._entries.in_state(DecodeState.PREEMPTED) + running
        return [one for one in entries if not one.is_prompt and one.sequence.remaining > 1]

    def in_passes(self) -> list[DecodeEntry]:
        """The streams in passes."""
        owners = self._prompts.owners & self._entries.keys()
        entries = [self._entries[owner] for owner in owners]
        return [entry for entry in entries if not entry.is_prompt]

    def spans(self) -> list[Span]:
        """Tokens of requests that were preempted; they were streaming already."""
        budget = self._chunk_tokens
        spans: list[Span] = []
        for entry in self._by_turn():
            count = min(entry.sequence.remaining, budget)
            # It may have been preempted since, so that another request could grow.
            if entry.state is DecodeState.RUNNING and count:
                added = self._slots.span(entry, count)
                if added is not None:
                    budget -= count
                    spans.append(added)
        return spans

    def _by_turn(self) -> list[DecodeEntry]:
        """The streams that stand still, in their order; begins a turn if the last is over."""
        idle = [entry for entry in self._slots.idle() if not entry.is_prompt]
        if self.in_passes():
            idle = [entry for entry in idle if not entry.batch]
        still = {one.sequence.owner: one for one in idle if one.sequence.remaining > 1}
        self._turn = self._turn & still.keys() or frozenset(still)
        return sorted(
            still.values(),
            key=lambda one: (
                one.batch,
                one.sequence.owner not in self._turn,
                one.sequence.remaining,
            ),
        )
