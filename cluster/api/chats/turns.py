"""The turns of a conversation: which follow which, and what each may hold."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.api.prompts import ChatMessage
from engine.errors import InvalidRequest, shown


def check_turns(messages: Sequence[ChatMessage], field: str) -> None:
    """Raise InvalidRequest, naming a field in `field`, where calls and results do not fit.

    Only an assistant calls tools. A result answers a call of an earlier turn, and once.
    """
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        name = f"{field}[{index}]"
        if message.role != "assistant" and (message.tool_calls or message.reasoning):
            what = "tool_calls" if message.tool_calls else "reasoning_content"
            raise InvalidRequest(f"{name}.{what} is of an assistant alone", field=f"{name}.{what}")
        for call in message.tool_calls:
            if call.id in open_calls:
                raise InvalidRequest(
                    f"{name}.tool_calls: the id {shown(call.id)} is of an earlier call",
                    field=f"{name}.tool_calls",
                )
            open_calls.add(call.id)
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise InvalidRequest(
                    f"{name}.tool_call_id: no earlier turn has an open call of the id "
                    f"{shown(message.tool_call_id)}",
                    field=f"{name}.tool_call_id",
                )
            open_calls.remove(message.tool_call_id)
        elif message.tool_call_id:
            what = f"{name}.tool_call_id"
            raise InvalidRequest(f"{what} is of a tool alone", field=what)
