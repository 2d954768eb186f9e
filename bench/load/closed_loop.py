"""Measures decode and prefill of a server, through its OpenAI-compatible HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.core.engine_plan import Figures, Measurement
from bench.core.prompts import as_text, prompt_ids
from bench.core.statistics import steady_rate
from bench.load.client import Target, send_request, send_requests
from bench.load.http_recording import BadAnswer, RecordedAnswer

_DEADLINE_S = 180.0


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """The target of requests: the server, its name for the model, and further body fields.

    With `chat` a prompt is a chat of one user message, as text.
    """

    target: Target
    model: str
    vocabulary: int
    extra: Mapping[str, object] = field(default_factory=dict)
    chat: bool = False

    def request(self, tokens: int, new: int, name: str) -> bytes:
        """The request for a streamed, greedy completion of a text prompt of so many tokens."""
        return self.completion(as_text(prompt_ids(tokens, self.vocabulary, name)), new)

    def completion(self, prompt: str | list[int], new: int) -> bytes:
        """The request for a streamed, greedy completion of a text or token ids."""
        return self._post({**self._body(prompt, new), "stream": True, **self.extra})

    def whole(self, prompt: str | list[int], new: int) -> bytes:
        """The request for a greedy completion in one piece."""
        extra = {name: value for name, value in self.extra.items() if name != "stream_options"}
        return self._post({**self._body(prompt, new), **extra})

    def _post(self, body: Mapping[str, object]) -> bytes:
        return self.target.post(body, "/v1/chat/completions" if self.chat else "/v1/completions")

    def _body(self, prompt: str | list[int], new: int) -> dict[str, object]:
        asked: dict[str, object] = {"prompt": prompt}
        if self.chat:
            text = prompt if isinstance(prompt, str) else as_text(prompt)
            asked = {"messages": [{"role": "user", "content": text}]}
        return {"model": self.model, **asked, "max_tokens": new, "temperature": 0.0}


async def figures(server: ServerTarget, plan: Measurement, name: str) -> Figures:
    """Run the plan after a warm-up of every part of it. Raises OSError, TimeoutError, ValueError.

    The prompts are unique within a server's life, so a prefix cache is no help.
    """
    for batch in plan.new_tokens:
        await _decode(server, plan, batch, f"{name}/warm")
        await _first_token_s(server, plan, f"{name}/warm/{batch}")
    found = Figures()
    for batch in plan.new_tokens:
        for repeat in plan.rounds():
            answers = await _decode(server, plan, batch, f"{name}/{repeat}")
            found.decode(batch, steady_rate([answer.stream() for answer in answers]))
    for repeat in plan.rounds():
        seconds = await _first_token_s(server, plan, f"{name}/{repeat}")
        found.prefill(plan.long_prompt / seconds)
    return found


async def _decode(
    server: ServerTarget, plan: Measurement, batch: int, name: str
) -> list[RecordedAnswer]:
    requests = [
        server.request(plan.prompt_tokens, plan.new_tokens[batch], f"{name}/{batch}/{index}")
        for index in range(batch)
    ]
    answers = await send_requests(server.target, requests, _DEADLINE_S)
    for answer in answers:
        _check_prompt(answer, plan.prompt_tokens)
    return answers


async def _first_token_s(server: ServerTarget, plan: Measurement, name: str) -> float:
    request = server.request(plan.long_prompt, 1, f"{name}/long")
    answer = await send_request(server.target, request, _DEADLINE_S)
    _check_prompt(answer, plan.long_prompt)
    return answer.first_token_s()


def _check_prompt(answer: RecordedAnswer, tokens: int) -> None:
    counted = answer.prompt_tokens()
    if counted not in (None, tokens):
        raise BadAnswer(f"the server counts {counted} prompt tokens, not {tokens}")
