"""The client of Tandem: sync and async, over one router or several.

with SyncClient("127.0.0.1:50051") as client:
    print(client.complete("Once upon a time", max_tokens=32).text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tandem_client.completion import CompletedChoice, Completion
from tandem_client.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    TandemError,
    Unauthenticated,
    Unavailable,
)
from tandem_client.events import (
    ChoiceSummary,
    Event,
    ModelInfo,
    Progress,
    Resumability,
    SampledToken,
    StageTime,
    Started,
    Summary,
    TextScores,
    Tokens,
)
from tandem_client.grammar import Grammar, choice_grammar
from tandem_client.prompts import ChatMessage, ChatPrompt, TextPrompt, TokenPrompt
from tandem_client.tools import Tool, ToolCall, ToolCallDelta, ToolUse

if TYPE_CHECKING:
    from tandem_client.grpc_client import Client
    from tandem_client.inputs import Options
    from tandem_client.router_address import RouterAddress
    from tandem_client.sync_client import SyncClient

__version__ = "0.1.0"

__all__ = [
    "Cancelled",
    "ChatMessage",
    "ChatPrompt",
    "ChoiceSummary",
    "Client",
    "CompletedChoice",
    "Completion",
    "DeadlineExceeded",
    "Event",
    "Grammar",
    "InvalidRequest",
    "ModelInfo",
    "NotFound",
    "Options",
    "Overloaded",
    "PermissionDenied",
    "Progress",
    "Resumability",
    "RouterAddress",
    "SampledToken",
    "StageTime",
    "Started",
    "Summary",
    "SyncClient",
    "TandemError",
    "TextPrompt",
    "TextScores",
    "TokenPrompt",
    "Tokens",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolUse",
    "Unauthenticated",
    "Unavailable",
    "choice_grammar",
]

# These load grpc, which the engine does without: it shares the errors alone.
_LATER = {
    "Client": "grpc_client",
    "Options": "inputs",
    "RouterAddress": "router_address",
    "SyncClient": "sync_client",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
