"""A request as it arrives, before it is tokenised. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from cluster.admission.early_refusal import ArrivingRequest
from cluster.api import ChatPrompt, GenerateRequest, Prompt, ScorePrompt, TextPrompt
from cluster.config.endpoints import EndpointConfig

# Numerics: token ids count as so many characters of text.
_TOKEN_SIZE = 4


def arrival_of(
    request: GenerateRequest, endpoint: EndpointConfig, tenant: str, arrived_s: float
) -> ArrivingRequest | None:
    """The arrival of a request that counts for `tenant`; None where it must be planned first."""
    if isinstance(request.prompt, ScorePrompt):
        return None
    return ArrivingRequest(
        size=size_of(request.prompt),
        arrived_s=arrived_s,
        budget_s=endpoint.ttft_budget_s,
        key=retry_key(request),
        tenant=tenant,
        choices=request.n,
        batch=endpoint.lane == "batch",
    )


def retry_key(request: GenerateRequest) -> Hashable:
    """The same value when the same prompt comes again from the same tenant."""
    return hash((request.tenant, request.prompt))


def size_of(prompt: Prompt) -> int:
    """The characters of a prompt."""
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    if isinstance(prompt, ChatPrompt):
        return sum(len(message.content) for message in prompt.messages)
    if isinstance(prompt, ScorePrompt):
        more = 0 if prompt.continuation is None else size_of(prompt.continuation)
        return size_of(prompt.prompt) + more
    return _TOKEN_SIZE * len(prompt.ids)
