"""One choice of one request, as the engine sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.errors import TandemError
from engine.kv.prefix_digest import DEFAULT_TENANT, Chain
from engine.types.grammar import TokenMatcher
from engine.types.lane import Lane
from engine.types.sampling_params import SamplingParams
from engine.types.scores import Scores, Scoring
from engine.types.urgency import Urgency
from tandem_client.events import FinishReason as FinishReason
from tandem_client.events import SampledToken as SampledToken

if TYPE_CHECKING:
    from engine.kv.block_table import BlockTable


@dataclass(slots=True)
class Sequence:
    """The token ids of a choice so far, and the blocks with their KV.

    - `owner`: the name under which the pool keeps the blocks.
    - `tokens`: prompt and output in one list.
    - `sampling`: complete, with `seed` and `max_tokens`.
    - `computed`: the number of leading tokens with their KV in `blocks`.
    - `named`: the number of leading blocks in the prefix cache.
    - `cached_tokens`: how many tokens had their KV at the first start; None before it.
    - `lane`, `ttft_budget_s` (from arrival to first token): these order the prompts.
    - `urgency`: how much of shared cores the prompt gets; waiting prompts raise it.
    - `batch_window_s`: how long the request may wait for a decode batch; None: the pool's window.
    - `passes`: the passes that computed its prompt, each by the sequence's part of its tokens.
    - `pass_s`: the seconds of these passes alone, each shared in the same way.
    - `request_id`, `traceparent` (of W3C; empty where nobody traces it): for logs.
    - `scoring`: requests the log-probabilities of the prompt's own tokens.
    - `matcher`: the state of the grammar in `sampling`; set before the sequence is computed.
    - `table`: converts `blocks` to an array; the engine makes it.
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
    passes: float = 0.0
    pass_s: float = 0.0
    request_id: str = ""
    traceparent: str = ""
    scoring: Scoring | None = None
    matcher: TokenMatcher | None = None
    table: BlockTable | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def pressed(self) -> bool:
        """Whether the prompt may slow the streams beside it down."""
        return self.urgency >= Urgency.PRESSED

    @property
    def named_in_log(self) -> dict[str, object]:
        """The fields that every log line about the request has."""
        named: dict[str, object] = {"request_id": self.request_id, "choice": self.choice}
        return named | {"traceparent": self.traceparent} if self.traceparent else named

    @property
    def output_tokens(self) -> int:
        """The number of generated tokens."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def most_tokens(self) -> int:
        """The most tokens that the sequence can have, prompt and output."""
        return self.prompt_tokens + (self.sampling.max_tokens or 1)

    @property
    def remaining(self) -> int:
        """The number of tokens without KV."""
        return len(self.tokens) - self.computed

    @property
    def may_follow(self) -> bool:
        """Whether a token can be sampled before the token ahead of it is known on the host.

        A grammar needs all tokens there.
        """
        return self.matcher is None


# Not frozen: each step makes a span for each stream, and a frozen one takes three times as long.
@dataclass(slots=True)
class Span:
    """Consecutive tokens of a sequence to compute in one step: `count` from `start` on.

    `follows`: the span is the token that this row of the step before samples, and the sequence does
    not have it yet.
    """

    sequence: Sequence
    start: int
    count: int
    follows: int | None = None

    @property
    def samples(self) -> bool:
        """Whether this span reaches the sequence's end, so that a next token is sampled."""
        end = self.start + self.count
        return self.follows is not None or end == len(self.sequence.tokens)

    @property
    def scored(self) -> range:
        """The numbers of the sequence's tokens that this span scores."""
        scoring = self.sequence.scoring
        return range(0) if scoring is None else scoring.within(self.start, self.count)


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """The scores of a span's tokens, and the token that was sampled behind them, if any."""

    scores: Scores
    token: SampledToken | None


# The result of a span: a token, a fault of its sequence alone, or None if nothing was sampled.
Outcome = SampledToken | ScoredSpan | TandemError | None


def urgency_of(spans: Iterable[Span]) -> Urgency:
    """The greatest urgency of the prompts in a pass; prompts of the batch lane have none."""
    sequences = (span.sequence for span in spans)
    prompts = [one for one in sequences if not one.output_tokens and one.lane != "batch"]
    return max((prompt.urgency for prompt in prompts), default=Urgency.NONE)


def collected(span: Span, outcome: Outcome) -> SampledToken | TandemError | None:
    """The result of a span without its scores, which go to the sequence's `scoring`."""
    if not isinstance(outcome, ScoredSpan):
        return outcome
    if span.sequence.scoring is not None:
        span.sequence.scoring.take(span.scored.start, outcome.scores)
    return outcome.token
