"""The prompts that a replica keeps for the calls of one connection, each sent once."""

from __future__ import annotations

from dataclasses import dataclass

from protos.calls_pb2 import Command, ForgetPrompt
from protos.shared_prompt import SharedPrompt


@dataclass(slots=True)
class _SentPrompt:
    """A prompt under its number, and the calls that have begun with it and not ended."""

    number: int
    calls: int = 0


class SentPrompts:
    """Says when a prompt must be sent, before its first call, and forgotten, after its last. Pure.

    The commands that it returns are to be sent at once.
    """

    def __init__(self) -> None:
        self._sent: dict[SharedPrompt, _SentPrompt] = {}
        self._of_call: dict[int, SharedPrompt] = {}

    def hold(self, call: int, prompt: SharedPrompt) -> tuple[int, list[Command]]:
        """Keep the prompt at the replica until `release` of the call.

        Returns its number, and what is to be sent before the call.
        """
        commands: list[Command] = []
        sent = self._sent.get(prompt)
        if sent is None:
            # Calls and prompts are numbered apart, so the number of its first call is free.
            sent = self._sent[prompt] = _SentPrompt(call)
            commands = [Command(call=call, prompt=prompt.encoded)]
        sent.calls += 1
        self._of_call[call] = prompt
        return sent.number, commands

    def release(self, call: int) -> list[Command]:
        """Note that the call has ended; returns what is to be sent. Idempotent."""
        prompt = self._of_call.pop(call, None)
        if prompt is None:
            return []
        sent = self._sent[prompt]
        sent.calls -= 1
        if sent.calls:
            return []
        del self._sent[prompt]
        return [Command(call=sent.number, forget=ForgetPrompt())]

    def clear(self) -> None:
        """Let go of all prompts: the connection has ended."""
        self._sent.clear()
        self._of_call.clear()
