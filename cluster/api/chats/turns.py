"""The turns of a conversation: which follow which, and what each may hold."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.api.prompts import ChatMessage
from engine.errors import InvalidRequest, shown


class OpenCalls:
    """The calls of a conversation that have no result yet. Everything raises InvalidRequest."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def begin(self, call_id: str, field: str) -> None:
        """Take a call, whose id stands in `field`."""
        if call_id in self._ids:
            message = f"{field}: the id {shown(call_id)} is of an earlier call"
            raise InvalidRequest(message, field=field)
        self._ids.add(call_id)

    def answer(self, call_id: str, field: str) -> None:
        """Take the result of a call, whose id stands in `field`."""
        if call_id not in self._ids:
            message = f"{field}: no earlier turn has an open call of the id {shown(call_id)}"
            raise InvalidRequest(message, field=field)
        self._ids.remove(call_id)


def check_turns(messages: Sequence[ChatMessage], field: str) -> None:
    """Raise InvalidRequest, naming a field in `field`, where calls and results do not fit.

    Only an assistant calls tools. A result answers a call of an earlier turn, and once.
    """
    open_calls = OpenCalls()
    for index, message in enumerate(messages):
        name = f"{field}[{index}]"
        if message.role != "assistant" and (message.tool_calls or message.reasoning):
            what = "tool_calls" if message.tool_calls else "reasoning_content"
            raise InvalidRequest(f"{name}.{what} is of an assistant alone", field=f"{name}.{what}")
        for call in message.tool_calls:
            open_calls.begin(call.id, f"{name}.tool_calls")
        if message.role == "tool":
            open_calls.answer(message.tool_call_id, f"{name}.tool_call_id")
        elif message.tool_call_id:
            what = f"{name}.tool_call_id"
            raise InvalidRequest(f"{what} is of a tool alone", field=what)
