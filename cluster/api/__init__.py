"""Requests and their events, in Python and on the wire."""

from cluster.api.chats.tools import Tool, ToolCall, ToolCallDelta, ToolUse
from cluster.api.prompts import Prompt, ScorePrompt
from cluster.api.requests import (
    Event,
    GenerateRequest,
    Generator,
    Heartbeat,
    ModelCard,
    ResumeRequest,
    Scored,
)
from tandem_client.events import (
    ChoiceSummary,
    Progress,
    Resumability,
    Stage,
    StageTime,
    Started,
    Summary,
    TextPart,
    Tokens,
)
from tandem_client.prompts import ROLES, ChatMessage, ChatPrompt, Role, TextPrompt, TokenPrompt

__all__ = [
    "ROLES",
    "ChatMessage",
    "ChatPrompt",
    "ChoiceSummary",
    "Event",
    "GenerateRequest",
    "Generator",
    "Heartbeat",
    "ModelCard",
    "Progress",
    "Prompt",
    "Resumability",
    "ResumeRequest",
    "Role",
    "ScorePrompt",
    "Scored",
    "Stage",
    "StageTime",
    "Started",
    "Summary",
    "TextPart",
    "TextPrompt",
    "TokenPrompt",
    "Tokens",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolUse",
]
