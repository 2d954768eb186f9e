"""Chooses the waiting requests that enter the decode batch. Pure."""

from __future__ import annotations

from decode_pool.batch_slots import BatchSlots
from decode_pool.batching import Batching, Candidate, Queue
from decode_pool.entry import DecodeEntries, DecodeEntry, DecodeState, by_rank
from engine.types.lane_quota import require_capacity
from engine.types.sequence import Sequence


class DecodeAdmission:
    """The requests that wait for a slot: offers of KV, local prompts, and preempted requests.

    Offers are taken by rank. A local prompt is taken at its turn among the prompts, unless an
    offer has waited longer. Preempted requests go before both, in the same lane.
    """

    def __init__(
        self, entries: DecodeEntries, slots: BatchSlots, batching: Batching, max_waiting: int
    ) -> None:
        self._entries = entries
        self._slots = slots
        self._batching = batching
        self._max_waiting = max_waiting
        self._offers: list[DecodeEntry] = []
        # The offers that no grant has seen.
        self._new: list[DecodeEntry] = []
        self._blocked: DecodeEntry | None = None
        self._last_no = 0

    def enter(self, sequence: Sequence, now: float, *, local: bool) -> DecodeEntry:
        """Queue a request; Overloaded if the queue is full."""
        waiting, batch = self._entries.count(DecodeState.WAITING), sequence.lane == "batch"
        require_capacity(waiting, self._max_waiting, "requests wait", batch=batch)
        self._last_no += 1
        entry = DecodeEntry(sequence, self._last_no, now, local)
        self._entries[sequence.owner] = entry
        return entry

    def offer(self, sequence: Sequence, now: float) -> None:
        """Queue a request whose KV waits elsewhere; Overloaded if the queue is full."""
        entry = self.enter(sequence, now, local=False)
        self._offers.append(entry)
        self._new.append(entry)

    def forget(self, entry: DecodeEntry) -> None:
        """Forget a request that has gone, in any state."""
        self._batching.left(entry.sequence.owner)
        if entry.state is DecodeState.WAITING and not entry.local:
            self._offers.remove(entry)
        if entry is self._blocked:
            self._blocked = None

    def form_batch(self, now: float) -> float | None:
        """Let the next batch form; returns the seconds until one is due by time, or None."""
        waiting = [] if self._batching.continuous else self._entries.in_state(DecodeState.WAITING)
        if not waiting:
            return None
        candidates = [
            Candidate(entry.sequence.owner, entry.arrived_s, entry.sequence.batch_window_s)
            for entry in waiting
        ]
        return self._batching.form(Queue(candidates, self._slots.capacity(waiting)), now)

    def grant_early(self, sequence: Sequence, reserve: int) -> bool:
        """Give blocks to a request that was not offered, if it overtakes no request.

        At least `reserve` blocks are left.
        """
        entry = DecodeEntry(sequence, self._last_no + 1)
        if self._entries.preempted_before(entry) or any(o.rank < entry.rank for o in self._offers):
            return False
        may_join = self._batching.may_join(sequence.owner)
        if not may_join or not self._slots.receive(entry, reserve):
            return False
        self._last_no += 1
        self._entries[sequence.owner] = entry
        return True

    def grant(self) -> list[Sequence]:
        """Give blocks to offers, by rank, while there are slots and blocks."""
        granted = []
        for entry in self._joining():
            # A prompt that is next in order, and has waited longer for blocks.
            earlier = self._blocked is not None and self._blocked.rank < entry.rank
            if earlier or self._entries.preempted_before(entry):
                entry.waited_for = "earlier"
                break
            if not self._slots.receive(entry):
                entry.waited_for = self._slots.shortage
                break
            self._offers.remove(entry)
            granted.append(entry.sequence)
        self._note_waits()
        return granted

    def restart_preempted(self) -> None:
        """Start preempted requests again, by rank, while there are slots and blocks."""
        others_wait = any(not one.batch for one in (*self._joining(), self._blocked) if one)
        for entry in self._entries.in_state(DecodeState.PREEMPTED):
            if (entry.batch and others_wait) or not self._slots.start(entry):
                break

    def unblock_prompts(self) -> None:
        """Forget which prompts were refused blocks; called before the next prompts are chosen."""
        self._blocked = None

    def admit_prompt(self, owner: str) -> int:
        """Start a prompt if there are blocks and no offer waits longer; returns its tokens left."""
        entry = self._entries[owner]
        if entry.state is DecodeState.RUNNING:
            return entry.sequence.remaining
        older = any(offer.rank < entry.rank for offer in self._joining())
        if self._blocked is not None and (entry.batch or not self._blocked.batch):
            return 0
        if older or self._entries.preempted_before(entry):
            return 0
        if not self._batching.may_join(owner):
            return 0
        if not self._slots.start(entry):
            self._blocked = entry
            return 0
        return entry.sequence.remaining

    def _note_waits(self) -> None:
        """Note what the new offers wait for that are not the next."""
        for entry in self._new:
            if entry.state is DecodeState.WAITING and entry.waited_for == "nothing":
                may_join = self._batching.may_join(entry.sequence.owner)
                entry.waited_for = "earlier" if may_join else "batch"
        self._new.clear()

    def _joining(self) -> list[DecodeEntry]:
        """The offers that may join now, by rank."""
        may_join = self._batching.may_join
        return by_rank(one for one in self._offers if may_join(one.sequence.owner))
