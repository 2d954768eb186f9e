"""Requests and events between the front ends and the router: one request in, many events out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cluster.api.tracing import NO_TRACE, Trace
from engine.kv.prefix_digest import DEFAULT_TENANT
from engine.types.lane import Lane
from engine.types.sampling_params import SamplingParams
from engine.types.scores import Scores
from engine.types.sequence import FinishReason, SampledToken

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt as text; special tokens are added as the tokenizer does."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as token ids, used unchanged."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered by the model's chat template."""

    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class ScorePrompt:
    """A text whose own tokens are scored; with a `continuation`, only the continuation's tokens.

    Both are text or both token ids. Each score comes with the `top` likeliest tokens at its
    position.
    """

    prompt: TextPrompt | TokenPrompt
    continuation: TextPrompt | TokenPrompt | None = None
    top: int = 0


Prompt = TextPrompt | TokenPrompt | ChatPrompt | ScorePrompt


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A client's request. Empty `request_id`, `model` and `endpoint` take the defaults.

    Requests of one `tenant` may share cached KV. `progress` requests Progress events; an endpoint
    with `stream: progress` sends them in any case. A ScorePrompt takes 1 for `n` and for
    `max_tokens`. It arrived at `arrived_s` (monotonic); None: when the router gets it.

    A `resumable` request outlives its connection. `note` is kept with it for the front end that
    resumes it. The log has its `trace`.
    """

    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    request_id: str = ""
    model: str = ""
    endpoint: str = ""
    tenant: str = DEFAULT_TENANT
    progress: bool = False
    arrived_s: float | None = field(default=None, compare=False)
    resumable: bool = False
    note: str = ""
    trace: Trace = NO_TRACE


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """The rest of a tenant's resumable stream; the client has `have` tokens of each choice.

    Choices beyond the end of `have` have none.
    """

    stream_id: str
    have: tuple[int, ...] = ()
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class Started:
    """The request was accepted. `seed` is the seed of its sampling.

    The `stream_id` of a resumable request names it on every router; others have an empty one.
    `note` is that of the request, where it is resumed.
    """

    request_id: str
    model: str
    prompt_tokens: int
    seed: int
    stream_id: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of a ScorePrompt's tokens from position `first` on; `ids` has all tokens."""

    ids: tuple[int, ...]
    first: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one choice, in order; `index` is the position of the first one, from 0.

    `text` is what became readable with them, and may be empty. `finish_reason` is set on the last
    event of a choice. `sampled` has the log-probabilities too, and is empty where none were asked
    for; `tokens` is never empty.
    """

    choice: int
    index: int
    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None
    sampled: tuple[SampledToken, ...] = ()

    @property
    def tokens(self) -> tuple[SampledToken, ...]:
        """The tokens with their log-probabilities; each call makes them anew."""
        return self.sampled or tuple(map(SampledToken, self.ids))


@dataclass(frozen=True, slots=True)
class ChoiceSummary:
    """The times of a choice by stage, in seconds. queue + prefill + first_flush = ttft.

    `cached_tokens` of the prompt had their KV in the prefix cache. Where `prefill_replica` and
    `decode_replica` are the same, the prompt was computed on the decode replica.
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
class Heartbeat:
    """No other event came for a while; the request still runs."""


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


Event = Started | Scored | Progress | Tokens | Heartbeat | Resumability | Summary


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The model that is served. `lanes` has the lane of each endpoint, or nothing."""

    name: str
    architecture: str
    dtype: str
    context_tokens: int
    vocabulary: int
    endpoints: tuple[str, ...]
    created: int
    lanes: tuple[Lane, ...] = ()


class TokenOffsets(Protocol):
    """Where in a text each of its tokens begins, token by token."""

    def push(self, token: int) -> int:
        """Take the next token; where its text begins, in characters."""
        ...


class Generator(Protocol):
    """The part of the router that a front end uses."""

    @property
    def model(self) -> ModelCard:
        """The model that is served."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Started, then Tokens, then Summary; raises a TandemError. Closing it cancels.

        A Heartbeat comes wherever nothing else did for a while, and Progress, where it is asked
        for, at any point before the Summary. For a ScorePrompt a Scored comes before the Tokens.
        """
        ...

    def resume(self, request: ResumeRequest) -> AsyncIterator[Event]:
        """Started again, then the Tokens that the client does not have, then Summary.

        Raises a TandemError: NotFound for a stream that the tenant does not have, or that was too
        long ago; InvalidRequest where the client has more than the journal, or a part of an event.
        Closing it does not cancel the request at once, as another connection may resume it.
        """
        ...

    async def cancel(self, request_id: str, tenant: str) -> bool:
        """Cancel a tenant's request in any phase; False where the tenant has none of that id."""
        ...

    async def cancel_stream(self, stream_id: str, tenant: str) -> bool:
        """Cancel a tenant's resumable request, on whichever router; False where there is none."""
        ...

    def token_text(self, token: int) -> str:
        """One token as text by itself, for log-probability listings."""
        ...

    def offsets(self) -> TokenOffsets:
        """The offsets of the tokens of a new text."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        ...

    def missing(self) -> tuple[str, ...]:
        """The pools that have no healthy replica, by name; empty means ready.

        A router that takes nothing new is missing, too.
        """
        ...

    def unhealthy(self) -> tuple[str, ...]:
        """The ids of the replicas that are there and get no work."""
        ...
