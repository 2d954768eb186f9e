"""The endpoint and the lane of a request. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.api import GenerateRequest, ScorePrompt
from cluster.config.endpoints import EndpointConfig
from engine.types.lane import Lane


def endpoint_of(
    request: GenerateRequest, endpoints: Mapping[str, EndpointConfig], default: str
) -> str:
    """The endpoint that the request names, configured or not; else the default endpoint.

    The default for scoring is the first endpoint of the lane scoring, where there is one.
    """
    if request.endpoint:
        return request.endpoint
    if isinstance(request.prompt, ScorePrompt):
        for name, endpoint in endpoints.items():
            if endpoint.lane == "scoring":
                return name
    return default


def lane_of(request: GenerateRequest, endpoint: EndpointConfig) -> Lane:
    """The lane of a request at its endpoint. Scoring uses only the lanes scoring and batch."""
    if isinstance(request.prompt, ScorePrompt) and endpoint.lane != "batch":
        return "scoring"
    return endpoint.lane
