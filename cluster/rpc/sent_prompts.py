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
    """Says when a prompt is sent, before its first call, and forgotten, after its last. Pure."""

    def __init__(self) -> None:
        self._sent: dict[SharedPrompt, _SentPrompt] = {}
        self._of_call: dict[int, SharedPrompt] = {}
        self._unused: list[int] = []

    def hold(self, call: int, prompt: SharedPrompt) -> tuple[int, list[Command]]:
        """Keep the prompt at the replica until `release` of the call.

        Returns its number, and what is to be sent at once, before the call.
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

    def release(self, call: int) -> bool:
        """Note that the call has ended; returns whether `forget` has commands. Idempotent."""
        prompt = self._of_call.pop(call, None)
        if prompt is not None:
            sent = self._sent[prompt]
            sent.calls -= 1
            if not sent.calls:
                del self._sent[prompt]
                self._unused.append(sent.number)
        return bool(self._unused)

    def forget(self) -> list[Command]:
        """The commands to forget the prompts that no call needs any more, once.

        They go before the next prompt, so that the replica never has more prompts than its bound.
        """
        unused, self._unused = self._unused, []
        return [Command(call=number, forget=ForgetPrompt()) for number in unused]

    def clear(self) -> None:
        """Let go of all prompts: the connection has ended."""
        self._sent.clear()
        self._of_call.clear()
        self._unused.clear()
