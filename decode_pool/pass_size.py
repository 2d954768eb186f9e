"""The prompt tokens of a pass beside steps, and whether a pass may follow another. Pure."""

from __future__ import annotations

from decode_pool.itl_budget import ItlBudget
from engine.scheduling.prompt_order import PromptOrder

# Tuned: the slices of a pass beside steps, so that a layer is short beside a slice.
_SLICES_PER_PASS = 16
# A bound: a shorter pass would read all weights for few tokens.
_LEAST_PASS_TOKENS = 64


class PassSize:
    """Sizes of passes, by the time that the ITL budget leaves and by the speed of prompts.

    `mixes`: the streams' tokens may ride in the passes of prompts.
    """

    def __init__(self, itl: ItlBudget, order: PromptOrder, *, mixes: bool) -> None:
        self._itl = itl
        self._order = order
        self._mixes = mixes

    @property
    def sliced(self) -> int | None:
        """The most tokens of a pass between steps, so that a layer of it is short beside a slice.

        None before the speed of prompts is known.
        """
        tokens = self._tokens_in(self._itl.slice_s())
        return None if tokens is None else max(_LEAST_PASS_TOKENS, _SLICES_PER_PASS * tokens)

    @property
    def mixed(self) -> int:
        """The most prompt tokens of a pass in which the streams' tokens ride; 0: none rides.

        Such a pass is not cut, and keeps the ITL budget as a whole.
        """
        tokens = self._tokens_in(self._itl.slice_s()) if self._mixes else None
        return tokens if tokens is not None and tokens >= _LEAST_PASS_TOKENS else 0

    def may_follow(self, used_s: float) -> bool:
        """Whether a pass may begin before the next step, after passes of `used_s` seconds."""
        tokens = self._tokens_in(self._itl.slice_s() - used_s)
        return tokens is not None and tokens >= _LEAST_PASS_TOKENS

    def _tokens_in(self, seconds: float) -> int | None:
        tokens_per_s = self._order.tokens_per_s
        return None if tokens_per_s is None else int(seconds * tokens_per_s)
