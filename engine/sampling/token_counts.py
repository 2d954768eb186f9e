"""How often each token occurred in the sequences with penalties, on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.errors import Internal
from engine.sampling.pinned_copies import on_device
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence

# No slot: the sequence has no penalties.
NO_SLOT = -1


@dataclass(slots=True)
class _Slot:
    number: int
    sampling: SamplingParams
    counted: int


class TokenCounts:
    """A slot of counts for each sequence that needs them.

    `table` is int32 [slots, vocabulary]: twice the occurrences in the output, plus 1 for a token of
    the prompt. A draw adds its token on the device. So the host adds only what a draw did not: the
    tokens of a new sequence, or those behind a draw whose result was not used.
    """

    def __init__(self, slots: int, vocabulary: int, device: torch.device) -> None:
        self.table = torch.zeros((slots, vocabulary), dtype=torch.int32, device=device)
        self._vocabulary = vocabulary
        self._free = list(range(slots))
        self._slots: dict[str, _Slot] = {}

    def slots_for(self, sequences: list[Sequence], lengths: list[int]) -> NDArray[np.int32] | None:
        """The slot of each sequence, whose counts are those of its leading `lengths` tokens.

        int32 [sequences]; None where no sequence has penalties. After the call each length counts
        one token more, which the draw adds. At most as many sequences as slots.
        """
        if not any(one.sampling.penalises for one in sequences):
            return None
        found = np.full(len(sequences), NO_SLOT, np.int32)
        keep = {one.owner for one in sequences}
        indices: list[NDArray[np.int64]] = []
        amounts: list[NDArray[np.int32]] = []
        for row, (one, length) in enumerate(zip(sequences, lengths, strict=True)):
            if not one.sampling.penalises:
                continue
            slot = self._slot_of(one, keep)
            if slot.counted > length:
                self._empty(slot)
            for tokens, amount in _missing(one, slot.counted, length):
                indices.append(tokens + slot.number * self._vocabulary)
                amounts.append(np.full(len(tokens), amount, np.int32))
            known = min(length, len(one.tokens))
            if max(slot.counted, known) != length:
                raise Internal(f"{one.owner} has {known} tokens, and a draw behind {length}")
            slot.counted = length + 1
            found[row] = slot.number
        if indices:
            device = self.table.device
            where = on_device(np.concatenate(indices), torch.int64, device)
            what = on_device(np.concatenate(amounts), torch.int32, device)
            self.table.view(-1).index_add_(0, where, what)
        return found

    def _slot_of(self, sequence: Sequence, keep: set[str]) -> _Slot:
        """The slot of a sequence, or else an empty one; the longest unused one gives way."""
        slot = self._slots.pop(sequence.owner, None)
        if slot is None:
            if not self._free:
                unused = next(owner for owner in self._slots if owner not in keep)
                self._free.append(self._slots.pop(unused).number)
            slot = _Slot(self._free.pop(), sequence.sampling, -1)
        if slot.counted < 0 or slot.sampling is not sequence.sampling:
            slot.sampling = sequence.sampling
            self._empty(slot)
        self._slots[sequence.owner] = slot
        return slot

    def _empty(self, slot: _Slot) -> None:
        self.table[slot.number].zero_()
        slot.counted = 0


def _missing(sequence: Sequence, counted: int, length: int) -> list[tuple[NDArray[np.int64], int]]:
    """Tokens that are not counted yet, each with what it adds."""
    missing = []
    prompt = min(sequence.prompt_tokens, length)
    if counted < prompt:
        # Once, as a prompt is counted at once.
        missing.append((np.unique(np.array(sequence.tokens[:prompt], np.int64)), 1))
    output = sequence.tokens[max(counted, prompt) : length]
    if output:
        missing.append((np.array(output, np.int64), 2))
    return missing
