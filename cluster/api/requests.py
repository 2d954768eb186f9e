"""Requests and events between the front ends and the router: one request in, many events out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cluster.api.prompts import ChatPrompt, Prompt
from cluster.api.tracing import NO_TRACE, Trace
from engine.kv.prefix_digest import DEFAULT_TENANT
from engine.types.lane import Lane
from engine.types.sampling_params import SamplingParams
from engine.types.scores import Scores
from tandem_client.events import Event as ClientEvent


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A client's request. Empty `request_id`, `model` and `endpoint` take the defaults.

    Requests of one `tenant` may share cached KV. `progress` requests Progress events; an endpoint
    with `stream: progress` sends them in any case. A ScorePrompt takes 1 for `n` and for
    `max_tokens`. It arrived at `arrived_s` (monotonic); None: when the router gets it.

    A `resumable` request outlives its connection. `note` is kept with it for the front end that
    resumes it. A front end may have drawn the `stream_id`; else the router draws it. With `timing`
    the Summary has the stages of each choice. The log has its `trace`.
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
    timing: bool = False
    note: str = ""
    stream_id: str = ""
    trace: Trace = NO_TRACE


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """The rest of a tenant's resumable stream; the client has `have` tokens of each choice.

    Choices beyond the end of `have` have none. Without `follow` the rest ends, perhaps without a
    Summary, behind what the journal has now.
    """

    stream_id: str
    have: tuple[int, ...] = ()
    tenant: str = DEFAULT_TENANT
    follow: bool = True


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of a ScorePrompt's tokens from position `first` on; `ids` has all tokens."""

    ids: tuple[int, ...]
    first: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """No other event came for a while; the request still runs."""


Event = ClientEvent | Scored | Heartbeat


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

    async def count_tokens(self, model: str, prompt: ChatPrompt) -> int:
        """The tokens of a chat for a model by name; raises a TandemError."""
        ...

    def resume(self, request: ResumeRequest) -> AsyncIterator[Event]:
        """Started again, then the Tokens that the client does not have, then Summary.

        Raises a TandemError:

        - NotFound for a stream that the tenant does not have, or that was too long ago.
        - InvalidRequest where the client has more than the journal, or a part of an event.

        An error with which the stream itself ended has `ended_stream`.
        Closing it does not cancel the request at once, as another connection may resume it.
        """
        ...

    async def cancel(self, request_id: str, tenant: str) -> bool:
        """Cancel a tenant's request in any phase, on whichever router; False where there is none.

        Raises Unavailable where a router that may run it does not answer.
        """
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
