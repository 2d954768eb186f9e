"""The prompts that a replica keeps for the calls of one connection, each sent once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protos.calls_pb2 import Command, ForgetPrompt
from protos.shared_prompt import SharedPrompt


@dataclass(slots=True)
class _SentPrompt:
    """A prompt under its number, and the calls that have begun with it and not ended."""

    number: int
    calls: int = 0


class SentPrompts:
    """Sends a prompt before its first call, and has it forgotten after its last call."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._sent: dict[SharedPrompt, _SentPrompt] = {}
        self._of_call: dict[int, SharedPrompt] = {}

    def hold(self, call: int, prompt: SharedPrompt) -> int:
        """Keep the prompt at the replica until `release` of the call; returns its number."""
        sent = self._sent.get(prompt)
        if sent is None:
            # The number of its first call is as unused as that call's own.
            sent = self._sent[prompt] = _SentPrompt(call)
            self._send(Command(call=call, prompt=prompt.encoded))
        sent.calls += 1
        self._of_call[call] = prompt
        return sent.number

    def release(self, call: int) -> None:
        """Note that the call has ended. Idempotent."""
        prompt = self._of_call.pop(call, None)
        if prompt is None:
            return
        sent = self._sent[prompt]
        sent.calls -= 1
        if not sent.calls:
            del self._sent[prompt]
            self._send(Command(call=sent.number, forget=ForgetPrompt()))

    def clear(self) -> None:
        """Let go of all prompts: the connection has ended."""
        self._sent.clear()
        self._of_call.clear()
