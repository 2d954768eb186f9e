"""The events of a request and the scores of a text, as the server sends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem_client.tools import ToolCallDelta

# A router turns "stop" into "tool_calls" where the answer has calls of tools.
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Started:
    """The request was accepted. `seed` is the seed of its sampling.

    The `stream_id` of a resumable request names it on every router; others have an empty one.
    `note` and `form` are of the server's own front ends, and empty for a client.
    """

    request_id: str
    model: str
    prompt_tokens: int
    seed: int
    stream_id: str = ""
    note: str = ""
    form: str = ""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token drawn by the sampler; `top` holds (token, log-probability), best first."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of the text of Tokens, or of their `reasoning`."""

    text: str
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one choice, in order; `index` is the position of the first one, from 0.

    `text` is what became readable with them, and may be empty. `finish_reason` is set on the last
    event of a choice. `sampled` has the log-probabilities too, and is empty where none were asked
    for; `tokens` is never empty. Of a chat's answer `reasoning` and `tool_calls` stand apart from
    `text`. `parts` has the pieces of all three where they come in another order than: reasoning,
    text, calls. It is of the server's own front ends, and empty for a client.
    """

    choice: int
    index: int
    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    sampled: tuple[SampledToken, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    parts: tuple[TextPart | ToolCallDelta, ...] = ()

    def in_order(self) -> tuple[TextPart | ToolCallDelta, ...]:
        """The pieces of reasoning, text and calls in the order of the answer; some are empty."""
        if self.parts:
            return self.parts
        return (TextPart(self.reasoning, reasoning=True), TextPart(self.text), *self.tool_calls)

    @property
    def tokens(self) -> tuple[SampledToken, ...]:
        """The tokens with their log-probabilities; each call makes them anew."""
        return self.sampled or tuple(map(SampledToken, self.ids))


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage of a choice, in seconds since its request arrived."""

    stage: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class ChoiceSummary:
    """The times of a choice by stage, in seconds. queue + prefill + first_flush = ttft.

    `cached_tokens` of the prompt had their KV in the prefix cache. Where `prefill_replica` and
    `decode_replica` are the same, the prompt was computed on the decode replica. A request with
    `timing` gets the `stages`, one behind the other from the arrival to the last token.
    """

    choice: int
    queue_s: float
    prefill_s: float
    first_flush_s: float
    ttft_s: float
    transfer_s: float
    decode_admission_s: float
    decode_s: float
    preemptions: int
    prefill_replica: str
    decode_replica: str
    cached_tokens: int = 0
    stages: tuple[StageTime, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The closing event of a request."""

    prompt_tokens: int
    completion_tokens: int
    choices: tuple[ChoiceSummary, ...]
    total_s: float

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that no choice had to compute, because their KV was cached."""
        return min((choice.cached_tokens for choice in self.choices), default=0)


@dataclass(frozen=True, slots=True)
class Resumability:
    """Whether a resumable stream could be resumed if it broke now; not while it is `suspended`."""

    suspended: bool


Stage = Literal["starting", "queued", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a choice: `tokens` of `total_tokens` of the prompt or of the longest answer.

    While the choice is queued, `position` is its queue position in its lane (1 is the next).
    `wait_s` is the predicted rest of its wait. Both are None where they are not known. `starting`:
    the choice is queued, and no replica is there yet to serve it.
    """

    choice: int
    stage: Stage
    tokens: int = 0
    total_tokens: int = 0
    position: int | None = None
    wait_s: float | None = None


Event = Started | Progress | Tokens | Resumability | Summary


@dataclass(frozen=True, slots=True)
class Scores:
    """The log-probability of each of some consecutive tokens, given all tokens before it.

    `top_ids` and `top_logprobs` have the likeliest tokens for each token, best first, end to end.
    """

    logprobs: list[float]
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class TextScores:
    """The scores of one text for a client: `scores` are of the tokens from position `first` on.

    `ids` and `texts` have all tokens, `sum` adds up the scored ones. Times are in seconds.
    """

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    first: int
    scores: Scores
    sum: float
    cached_tokens: int
    queue_s: float
    prefill_s: float


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that is served. `vocabulary` is a number of tokens."""

    name: str
    architecture: str
    dtype: str
    context_tokens: int
    vocabulary: int
    endpoints: tuple[str, ...]
