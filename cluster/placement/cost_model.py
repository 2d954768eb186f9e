"""The costs of a replica's work in seconds, learned from its past work. Pure.

The costs are sums of features with factors that are never negative
(`engine/scheduling/non_negative_fit.py`). A prompt has three features: its passes, its tokens, and
its pairs of a token and a token before it. A pass costs something however few tokens it has, and
prompts that wait share passes. Where streams share the prompt's device, `shared_cores.py` adds
further features.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from operator import mul

from cluster.placement.shared_cores import StreamSlowdown
from cluster.replica_record import ReplicaLoad
from engine.scheduling.non_negative_fit import NonNegativeFit
from engine.scheduling.pass_cost import PassCosts
from engine.types.urgency import Urgency

# Bound, for clocks and messages: a prompt that began at most so long before another ended, or half
# of its own time, came after it.
_AFTER_S, _AFTER_PART = 0.01, 0.5
# Tuned: prompts that overlap are one observation, of so many prompts and of a whole pass.
_TOGETHER = 8

# Start values per pass, per token, and per token and token before it; and usual features. A replica
# that has timed its passes reports better values.
_PREFILL_GUESS = (0.004, 0.0002, 0.0)
_PREFILL_TYPICAL = (1.0, 256.0, 256.0 * 512.0)
# Start values per step, and per sequence in it; and usual features.
_STEP_GUESS = (0.002, 0.0002)
_STEP_TYPICAL = (1.0, 8.0)
# Tuned: steps are many, so each is forgotten more slowly than a prompt.
_STEP_MEMORY = 0.99
# Start value: from the sampling of a first token until it is sent to the client.
_FLUSH_GUESS_S = 0.004
# Tuned: the part of a new observation in a mean.
_SMOOTHING = 0.1
# Bound: the last observations of prompts that are kept.
LAST_PROMPTS = 3
# Bound: an observation of the flush counts as so many times the mean, and so much more, at most.
_FLUSH_FARTHEST, _FLUSH_MORE_S = 4, 0.01

# The features of a prompt, or of prompts that overlapped, and the seconds that they took.
PromptTime = tuple[tuple[float, ...], float]


class PrefillCost:
    """The seconds that a replica takes to compute a prompt with nothing else to prefill."""

    def __init__(self) -> None:
        self._fit = NonNegativeFit(_PREFILL_GUESS, _PREFILL_TYPICAL)
        self._passes: PassCosts | None = None
        self._slowdown: StreamSlowdown | None = None  # until a prompt had an urgency
        self.ended_s = float("-inf")
        self._last: PromptTime | None = None
        self._fitted = deque[PromptTime](maxlen=LAST_PROMPTS - 1)
        self._together = 0  # prompts in the last observation

    @property
    def shared_tokens(self) -> int:
        """The tokens of a pass that several prompts share; 0 before a report of them."""
        return 0 if self._passes is None else self._passes.shared_tokens

    def report(self, passes: PassCosts) -> None:
        """Take the costs of passes that the replica has measured.

        They become the guess if they are lower, because a router that guesses too much would refuse
        the work that it could learn from.
        """
        self._passes = passes
        guess = passes.timing.pass_s, passes.timing.token_s
        lower = _cost(guess, _PREFILL_TYPICAL) < _cost(_PREFILL_GUESS, _PREFILL_TYPICAL)
        self._fit.start_from(guess if lower else _PREFILL_GUESS[:2])

    @property
    def learned(self) -> bool:
        """Whether predictions rest on finished prompts."""
        return self._fit.learned

    @property
    def last(self) -> tuple[PromptTime, ...]:
        """The last observations of prompts, at most `LAST_PROMPTS`, the newest last."""
        return tuple(self._fitted) + (() if self._last is None else (self._last,))

    def expected_s(self, features: Sequence[float]) -> float | None:
        """The seconds that an observation with these features takes here; None if not learned."""
        return self._fit.predict(features) if self._fit.learned else None

    def seconds(
        self,
        tokens: float,
        cached: float = 0.0,
        urgency: Urgency = Urgency.NONE,
        *,
        queued: bool = False,
    ) -> float:
        """The seconds for `tokens` behind `cached` tokens, at that urgency; 0 for no tokens.

        A `queued` prompt shares passes with the prompts around it.
        """
        if tokens <= 0:
            return 0.0
        passes = self._passes_of(tokens, queued=queued)
        alone_s = self._fit.predict(_features(passes, tokens, cached))
        if urgency is Urgency.NONE or self._slowdown is None:
            return alone_s
        return self._slowdown.seconds(alone_s, tokens, urgency)

    def learn(
        self,
        tokens: int,
        cached: int,
        prefill_s: float,
        ended_s: float,
        busy_s: float = float("inf"),
        urgency: Urgency = Urgency.NONE,
        passes: float = 0.0,
    ) -> None:
        """Learn from a prompt: its first token came at `ended_s`, `prefill_s` after its begin.

        `passes` are the passes that computed it, each by the prompt's part of its tokens; 0: the
        replica did not say. A prompt is charged the time since the prompt before it ended, as far
        as the replica had prompts then. It has had prompts since `busy_s` or earlier. Prompts that
        share passes or pass each other are charged together, because the part of each is not known.
        """
        first_s = ended_s - prefill_s
        after_s = min(_AFTER_S, _AFTER_PART * prefill_s)
        charged_s = max(0.0, ended_s - max(min(busy_s, first_s), self.ended_s))
        # A pass that is cut short beside streams is no pass more: predictions know whole ones.
        whole = self._passes_of(tokens, queued=False)
        passes = min(passes, whole) if passes else whole
        features = _features(passes, tokens, cached)
        if urgency is not Urgency.NONE or self._slowdown is not None:
            self._slowdown = self._slowdown or StreamSlowdown(self._fit)
            features = (*features, *self._slowdown.features(tokens, urgency))
        if self._last is not None:
            before, before_s = self._last
            more = self._together < _TOGETHER or before[0] < 1.0
            if first_s < self.ended_s - after_s and more:
                self._together += 1
                together = zip_longest(before, features, fillvalue=0.0)
                features = tuple(one + other for one, other in together)
                charged_s += before_s
            else:
                self._together = 1
                self._fit.observe(before, before_s)
                self._fitted.append(self._last)
                if self._slowdown is not None:
                    self._slowdown.fitted(before[len(_PREFILL_GUESS) :])
        self._last = features, charged_s
        self.ended_s = max(self.ended_s, ended_s)

    def _passes_of(self, tokens: float, *, queued: bool) -> float:
        return 1.0 if self._passes is None else self._passes.passes(tokens, queued=queued)


def _features(passes: float, tokens: float, cached: float) -> tuple[float, ...]:
    """The features of a prompt; the last is the number of token pairs in attention."""
    return passes, tokens, tokens * (cached + tokens / 2)


def _cost(factors: Sequence[float], features: Sequence[float]) -> float:
    seconds: float = sum(map(mul, factors, features))
    return seconds


class CostModel:
    """The costs of each replica, by its id, and of the way back to the client."""

    def __init__(self) -> None:
        self.flush_s = _FLUSH_GUESS_S
        self._prefill: dict[str, PrefillCost] = {}
        self._steps: dict[str, NonNegativeFit] = {}
        self._streams_s: dict[str, float] = {}

    def prefill(self, replica: str) -> PrefillCost:
        """The cost of prompts on that replica."""
        if replica not in self._prefill:
            self._prefill[replica] = PrefillCost()
        return self._prefill[replica]

    def step_s(self, replica: str, batch: int) -> float:
        """The predicted seconds of a decode step with so many sequences."""
        return self._step(replica).predict((1.0, float(batch)))

    def learn_step(self, replica: str, batch: int, step_s: float) -> None:
        """Learn that a decode step with so many sequences took `step_s`."""
        if batch > 0 and step_s > 0:
            self._step(replica).observe((1.0, float(batch)), step_s)

    def report(self, replica: str, load: ReplicaLoad) -> None:
        """Take a report: the costs of passes, and the time of a step."""
        if load.passes is not None:
            self.prefill(replica).report(load.passes)
        if load.step_s is not None:
            self.learn_step(replica, load.streams, load.step_s)

    def stream_s(self, replica: str) -> float | None:
        """The mean seconds that a request stays on that decode replica; None before the first."""
        return self._streams_s.get(replica)

    def knows(self, prefill: str, decode: str) -> bool:
        """Whether prompts of the prefill and streams of the decode replica were observed."""
        return decode in self._streams_s and self.prefill(prefill).learned

    def last_prompts(self, replica: str) -> tuple[PromptTime, ...]:
        """The last observations of prompts on that replica, the newest last."""
        cost = self._prefill.get(replica)
        return () if cost is None else cost.last

    def expected_s(self, replica: str, features: Sequence[float]) -> float | None:
        """The seconds of an observation with these features there; None if not learned."""
        cost = self._prefill.get(replica)
        return None if cost is None else cost.expected_s(features)

    def learned_step_s(self, replica: str, batch: int) -> float | None:
        """The seconds of a step with so many sequences; None before there were steps."""
        fit = self._steps.get(replica)
        return fit.predict((1.0, float(batch))) if fit is not None and fit.learned else None

    def learn_stream(self, replica: str, seconds: float) -> None:
        """Learn that a request stayed on that decode replica for `seconds`."""
        known = self._streams_s.get(replica, seconds)
        self._streams_s[replica] = known + _SMOOTHING * (seconds - known)

    def learn_flush(self, seconds: float) -> None:
        """Learn that a first token was sent `seconds` after it was sampled."""
        farthest_s = _FLUSH_FARTHEST * self.flush_s + _FLUSH_MORE_S
        self.flush_s += _SMOOTHING * (min(max(seconds, 0.0), farthest_s) - self.flush_s)

    def forget(self, living: Iterable[str]) -> None:
        """Drop replicas that are gone."""
        living = set(living)
        self._prefill = {name: cost for name, cost in self._prefill.items() if name in living}
        self._steps = {name: fit for name, fit in self._steps.items() if name in living}
        self._streams_s = {name: s for name, s in self._streams_s.items() if name in living}

    def _step(self, replica: str) -> NonNegativeFit:
        if replica not in self._steps:
            self._steps[replica] = NonNegativeFit(_STEP_GUESS, _STEP_TYPICAL, memory=_STEP_MEMORY)
        return self._steps[replica]
