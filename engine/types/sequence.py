"""One choice of one request, as the engine sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from engine.errors import Internal
from engine.kv.prefix_digest import DEFAULT_TENANT, Chain
from engine.types.lane import Lane
from engine.types.sampling_params import SamplingParams
from engine.types.scores import Scores, Scoring
from engine.types.urgency import Urgency

FinishReason = Literal["stop", "length"]


@dataclass(slots=True)
class Sequence:
    """Token ids so far and where their KV lies.

    `tokens` is prompt and output in one list; `computed` counts the leading tokens whose KV is in
    `blocks`, of which the leading `named` are known to the prefix cache. `owner` is the name under
    which the blocks are held in the pool. `sampling` is complete: `seed` and `max_tokens` are set.
    `cached_tokens` counts those whose KV was there at the first start; None before it. `lane` and
    `ttft_budget_s`, from arrival to first token, order the prompts. `urgency` says what streams
    that are served beside the prompt leave it; those that wait with it share in it.
    `batch_window_s` is how long it may wait for a decode batch to fill; None: as long as the pool
    lets others. `request_id` is for logs. `scoring` asks for the log-probabilities of the prompt's
    own tokens.
    """

    owner: str
    tokens: list[int]
    prompt_tokens: int
    sampling: SamplingParams
    choice: int = 0
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    tenant: str = DEFAULT_TENANT
    named: int = 0
    cached_tokens: int | None = None
    chain: Chain | None = None
    lane: Lane = "interactive"
    ttft_budget_s: float = 0.5
    urgency: Urgency = Urgency.PROMPTS
    batch_window_s: float | None = None
    request_id: str = ""
    scoring: Scoring | None = None

    @property
    def pressed(self) -> bool:
        """Whether streams beside the prompt have their budget alone, not the gap that they had."""
        return self.urgency >= Urgency.PRESSED

    @property
    def named_in_log(self) -> dict[str, object]:
        """The fields by which a line of the log is found again."""
        return {"request_id": self.request_id, "choice": self.choice}

    @property
    def output_tokens(self) -> int:
        """How many tokens were generated so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def most_tokens(self) -> int:
        """How many there can be, prompt and output."""
        return self.prompt_tokens + (self.sampling.max_tokens or 1)

    @property
    def remaining(self) -> int:
        """How many tokens have no KV yet."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of a sequence to compute in one step: `count` from `start` on."""

    sequence: Sequence
    start: int
    count: int

    @property
    def samples(self) -> bool:
        """Whether this span reaches the sequence's end, so that a next token is sampled."""
        return self.start + self.count == len(self.sequence.tokens)

    @property
    def scored(self) -> range:
        """The places of the tokens that computing this span scores."""
        scoring = self.sequence.scoring
        return range(0) if scoring is None else scoring.within(self.start, self.count)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token drawn by the sampler; `top` holds (token, log-probability), best first."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """The scores of a span's tokens, and the token that was sampled behind them, if one was."""

    scores: Scores
    token: SampledToken | None


# What a step gives for a span: a token, a fault of this sequence alone, or nothing was sampled.
Outcome = SampledToken | ScoredSpan | Internal | None


def urgency_of(spans: Iterable[Span]) -> Urgency:
    """The most urgency of the prompts in a pass; those of the batch lane are in none."""
    sequences = (span.sequence for span in spans)
    prompts = [one for one in sequences if not one.output_tokens and one.lane != "batch"]
    return max((prompt.urgency for prompt in prompts), default=Urgency.NONE)


def collected(span: Span, outcome: Outcome) -> SampledToken | Internal | None:
    """What a step gave for a span, after its scores have gone to the sequence's `scoring`."""
    if not isinstance(outcome, ScoredSpan):
        return outcome
    if span.sequence.scoring is not None:
        span.sequence.scoring.take(span.scored.start, outcome.scores)
    return outcome.token
