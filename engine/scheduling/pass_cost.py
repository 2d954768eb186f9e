"""The seconds of a pass over prompts: a constant, and a part for each token. Pure.

A pass reads all weights and launches all kernels, however few tokens it has. On a GPU this constant
is most of a short pass. `PassCost` learns both parts from computed passes, and from the warm-up's
own passes before there are others.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.scheduling.non_negative_fit import NonNegativeFit

# Tuned: the present speed is a mean over so many full passes.
_PASSES_IN_SPEED = 2
# Numerics: a clock too coarse for a short pass must not make it free.
_LEAST_TOKEN_S = 1e-9


@dataclass(frozen=True, slots=True)
class PassTiming:
    """The parts of a pass in seconds: `pass_s` for the pass itself, `token_s` for each token."""

    pass_s: float
    token_s: float

    @classmethod
    def of_two(cls, short: tuple[int, float], long: tuple[int, float]) -> PassTiming:
        """The timing that explains two passes, each given as its tokens and seconds.

        `long` has more tokens. Neither part is negative.
        """
        (few, few_s), (many, many_s) = short, long
        token_s = max(0.0, many_s - few_s) / (many - few)
        return cls(max(0.0, few_s - few * token_s), max(token_s, _LEAST_TOKEN_S))


@dataclass(frozen=True, slots=True)
class PassCosts:
    """The costs of a replica's passes, for routers.

    A pass over one prompt has at most `chunk_tokens`. Several prompts share a pass of at most
    `shared_tokens`.
    """

    timing: PassTiming
    shared_tokens: int
    chunk_tokens: int

    def passes(self, tokens: float, *, queued: bool) -> float:
        """The passes for a prompt of so many tokens.

        A `queued` prompt shares passes with the prompts around it, so it counts its part of them.
        A prompt alone has at least one pass for itself.
        """
        if queued and tokens < self.shared_tokens:
            return tokens / self.shared_tokens
        return max(1.0, tokens / self.chunk_tokens)


class PassCost:
    """Learns the timing of passes. A full pass has `full_tokens`.

    The fit knows the two parts, from many passes. The present speed is that of the last passes,
    because steps and other prompts beside a pass come and go.
    """

    def __init__(self, full_tokens: int) -> None:
        self._full_tokens = full_tokens
        self._fit: NonNegativeFit | None = None
        self._level = 1.0

    @property
    def known(self) -> bool:
        """Whether there was a pass, of the warm-up at least."""
        return self._fit is not None

    @property
    def timing(self) -> PassTiming | None:
        """The timing at the present speed; None before the first pass."""
        if self._fit is None:
            return None
        pass_s, token_s = self._fit.factors
        return PassTiming(self._level * pass_s, max(self._level * token_s, _LEAST_TOKEN_S))

    def start_with(self, timing: PassTiming) -> None:
        """Take the timing of the warm-up, if nothing was learned yet."""
        if self._fit is None:
            self._fit = self._new_fit(timing.pass_s, timing.token_s)

    def learn(self, tokens: int, seconds: float) -> None:
        """Learn that a pass of so many tokens took `seconds`."""
        if tokens < 1 or seconds <= 0:
            return
        seconds = max(seconds, _LEAST_TOKEN_S * tokens)
        if self._fit is None:
            self._fit = self._new_fit(0.0, seconds / tokens)
        features = 1.0, float(tokens)
        part = min(1.0, tokens / (_PASSES_IN_SPEED * self._full_tokens))
        expected_s = max(self._fit.predict(features), _LEAST_TOKEN_S * tokens)
        self._level += part * (seconds / expected_s - self._level)
        self._fit.observe(features, seconds)

    def seconds(self, tokens: float) -> float | None:
        """The seconds of one pass of so many tokens; None before the first pass."""
        timing = self.timing
        return None if timing is None else timing.pass_s + timing.token_s * tokens

    def wait_s(self, tokens: int, shared_tokens: int) -> float | None:
        """The seconds of the passes for `tokens` of several prompts; None before the first pass.

        A pass has at most `shared_tokens`, and the last pass takes its constant in full.
        """
        timing = self.timing
        if timing is None or tokens <= 0:
            return None if timing is None else 0.0
        return max(1.0, tokens / shared_tokens) * timing.pass_s + tokens * timing.token_s

    def _new_fit(self, pass_s: float, token_s: float) -> NonNegativeFit:
        guess = pass_s, max(token_s, _LEAST_TOKEN_S)
        return NonNegativeFit(guess, (1.0, float(self._full_tokens)))
