"""The masks of a batch's next tokens, made on a thread while the forward runs.

The tokens before a step decide its masks. So the thread begins with the step, and the sampler waits
only where the forward was faster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.errors import TandemError
from engine.grammar.matcher import GrammarMatcher
from engine.types.sequence import Sequence as TokenSequence

if TYPE_CHECKING:
    from llguidance import LLExecutor

# Bound: the fuel of llguidance ends a mask long before.
_TIMEOUT_S = 30.0
_MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The tokens that each guided sequence must not take.

    `banned` is [guided, vocabulary], and `rows` has the row of each owner. `bits` [guided, bytes]
    are the same as bits, the lowest first. An owner in `faults` can take no token at all.
    """

    banned: NDArray[np.bool_]
    bits: NDArray[np.uint8]
    rows: Mapping[str, int]
    faults: Mapping[str, TandemError]


class MaskMaker:
    """Makes masks on a thread of its own; `vocabulary` is the width of the model's logits."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._thread: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None

    def begin(self, sequences: Sequence[TokenSequence]) -> PendingMasks | None:
        """Begin the masks of the sequences with a matcher; None where there are none."""
        guided = {s.owner: (s.matcher, s) for s in sequences if s.matcher is not None}
        if not guided:
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        return PendingMasks(self._thread.submit(self._make, guided))

    def _make(self, guided: Mapping[str, tuple[object, TokenSequence]]) -> TokenMasks:
        matchers: list[GrammarMatcher] = []
        faults: dict[str, TandemError] = {}
        for owner, (matcher, sequence) in guided.items():
            assert isinstance(matcher, GrammarMatcher)
            matchers.append(matcher)
            try:
                matcher.follow(sequence.tokens, sequence.prompt_tokens)
            except TandemError as error:
                faults[owner] = error
        masks = np.zeros((len(matchers), matchers[0].words), dtype=np.int32)
        self._fill(matchers, masks)
        for row, owner in enumerate(guided):
            try:
                matchers[row].finish(masks[row])
            except TandemError as error:
                faults.setdefault(owner, error)
        bits = (~masks).view(np.uint8)
        unpacked = np.unpackbits(bits, axis=1, bitorder="little")
        banned = unpacked[:, : self._vocabulary].view(np.bool_)
        return TokenMasks(banned, bits, {owner: row for row, owner in enumerate(guided)}, faults)

    def _fill(self, matchers: list[GrammarMatcher], masks: NDArray[np.int32]) -> None:
        if self._executor is None:
            from llguidance import LLExecutor

            threads = max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)) // 2))
            self._executor = LLExecutor(num_threads=threads)
        numbered = [(matcher.tokens, row) for row, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(
            numbered, masks.ctypes.data, masks.strides[0], len(matchers)
        )


class PendingMasks:
    """Masks that are being made."""

    def __init__(self, future: Future[TokenMasks]) -> None:
        self._future = future

    def result(self) -> TokenMasks:
        """The masks, once they are there; TimeoutError after 30 s, or what the thread raised."""
        return self._future.result(_TIMEOUT_S)
