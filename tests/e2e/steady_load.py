"""Requests of all kinds all the time, each beside its exact answer, with the longest pause."""

from __future__ import annotations

import asyncio
import copy
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import httpx
import openai
import pytest
import torch

from cluster.api import Tokens
from tandem_client import Client
from tandem_client.call_tries import CallTries
from tests import exactness

KINDS = ("gRPC stream", "gRPC resumable", "HTTP stream", "HTTP answer", "scores")
STREAM_TOKENS, ANSWER_TOKENS = 600, 60
# Between two requests of a loop, so that processes that start get some of the cores.
_REST_S = 0.2
_LONGEST_S = 120.0
_LOGPROB_ERROR = 2e-3
_CLEAR = 2 * exactness.TIE


@dataclass
class Ended:
    """A request that is over: its longest pause, and its error or how its answer was wrong."""

    kind: str
    ended_s: float
    pause_s: float
    failure: str | None


def clear_case(model: torch.nn.Module, new_tokens: int) -> exactness.Case:
    """A prompt in whose greedy answer no two tokens are so near that rounding may choose."""
    exact = copy.deepcopy(model).double()
    for seed in range(200):
        case = exactness.random_case(model, seed, 40, new_tokens)
        ids = torch.tensor([[*case.prompt, *case.expected[:-1]]])
        with torch.inference_mode():
            best = exact(input_ids=ids).logits[0, len(case.prompt) - 1 :].topk(2).values
        if (best[:, 0] - best[:, 1]).min().item() > _CLEAR:
            return case
    raise AssertionError("no prompt of this model has a clear answer")


class SteadyLoad:
    """One loop of requests for each kind. `retries` counts what the clients sent again."""

    def __init__(self, grpc: str, http: str, model: torch.nn.Module) -> None:
        self.ended: list[Ended] = []
        self.retries: Counter[str] = Counter()
        self._http = http
        self._grpc = grpc
        self._stream = clear_case(model, STREAM_TOKENS)
        self._answer = clear_case(model, ANSWER_TOKENS)
        self._texts: dict[int, str] = {}
        self._scores: list[float] = []
        self._enough = asyncio.Event()

    @asynccontextmanager
    async def running(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
        """Send requests until the block ends; each of them still ends."""
        again = CallTries.another

        async def another(tries: CallTries, failed: Exception) -> None:
            self.retries["gRPC"] += 1
            await again(tries, failed)  # type: ignore[arg-type]

        async def sent(request: httpx.Request) -> None:
            self.retries["HTTP"] += request.headers.get("x-stainless-retry-count", "0") != "0"

        monkeypatch.setattr(CallTries, "another", another)
        hooks = {"request": [sent]}
        async with (
            Client(self._grpc) as client,
            httpx.AsyncClient(event_hooks=hooks, timeout=_LONGEST_S) as pool,
            openai.AsyncOpenAI(base_url=self._http, api_key="none", http_client=pool) as web,
        ):
            await self._learn(client)
            asks = {
                "gRPC stream": lambda: self._typed(client, resumable=False),
                "gRPC resumable": lambda: self._typed(client, resumable=True),
                "HTTP stream": lambda: self._web_stream(web),
                "HTTP answer": lambda: self._web_answer(web),
                "scores": lambda: self._score(client),
            }
            async with asyncio.TaskGroup() as group:
                for kind in KINDS:
                    group.create_task(self._loop(kind, asks[kind]))
                try:
                    yield
                finally:
                    self._enough.set()

    def failures(self) -> list[str]:
        """What went wrong."""
        return [f"{one.kind}: {one.failure}" for one in self.ended if one.failure is not None]

    def count(self) -> Counter[str]:
        """The requests that are over, by kind."""
        return Counter(one.kind for one in self.ended)

    def pauses(self, from_s: float, to_s: float) -> dict[str, float]:
        """By kind the longest pause in seconds of the requests that ended in that time."""
        ended = [one for one in self.ended if from_s <= one.ended_s <= to_s]
        return {
            kind: max((one.pause_s for one in ended if one.kind == kind), default=0.0)
            for kind in KINDS
        }

    async def _learn(self, client: Client) -> None:
        """The texts, by their tokens, and the scores, without a disturbance."""
        for case in (self._stream, self._answer):
            options = {"max_tokens": len(case.expected), "temperature": 0.0, "ignore_eos": True}
            done = await client.complete(list(case.prompt), **options)  # type: ignore[arg-type]
            assert [one.token for one in done.choices[0].tokens] == list(case.expected)
            self._texts[len(case.expected)] = done.text
        [found] = await client.score([list(self._stream.prompt)])
        self._scores = list(found.scores.logprobs)

    async def _loop(self, kind: str, ask: Callable[[], Awaitable[tuple[bool, float]]]) -> None:
        while not self._enough.is_set():
            failure, pause_s = None, 0.0
            try:
                async with asyncio.timeout(_LONGEST_S):
                    right, pause_s = await ask()
                failure = None if right else "another answer"
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
            self.ended.append(Ended(kind, time.monotonic(), pause_s, failure))
            with suppress(TimeoutError):
                async with asyncio.timeout(_REST_S):
                    await self._enough.wait()

    async def _typed(self, client: Client, *, resumable: bool) -> tuple[bool, float]:
        case, got, clock = self._stream, [], _Pauses()
        options = {"max_tokens": STREAM_TOKENS, "temperature": 0.0, "ignore_eos": True}
        events = client.generate(list(case.prompt), resumable=resumable, **options)  # type: ignore[arg-type]
        async for event in events:
            clock.tick()
            if isinstance(event, Tokens):
                assert event.index == len(got)
                got += [one.token for one in event.tokens]
        return tuple(got) == case.expected, clock.longest_s

    async def _web_stream(self, web: openai.AsyncOpenAI) -> tuple[bool, float]:
        case, text, clock = self._stream, "", _Pauses()
        async for chunk in await web.completions.create(**self._body(case), stream=True):
            clock.tick()
            text += "".join(choice.text for choice in chunk.choices)
        return text == self._texts[len(case.expected)], clock.longest_s

    async def _web_answer(self, web: openai.AsyncOpenAI) -> tuple[bool, float]:
        clock = _Pauses()
        answer = await web.completions.create(**self._body(self._answer))
        clock.tick()
        return answer.choices[0].text == self._texts[ANSWER_TOKENS], clock.longest_s

    async def _score(self, client: Client) -> tuple[bool, float]:
        clock = _Pauses()
        [found] = await client.score([list(self._stream.prompt)])
        clock.tick()
        pairs = zip(found.scores.logprobs, self._scores, strict=True)
        return all(abs(a - b) < _LOGPROB_ERROR for a, b in pairs), clock.longest_s

    def _body(self, case: exactness.Case) -> dict[str, object]:
        body = {"model": "tiny", "prompt": list(case.prompt), "max_tokens": len(case.expected)}
        return body | {"temperature": 0, "extra_body": {"ignore_eos": True}}


class _Pauses:
    """The longest time between two events, or before the first one."""

    def __init__(self) -> None:
        self.longest_s, self._last_s = 0.0, time.monotonic()

    def tick(self) -> None:
        now_s = time.monotonic()
        self.longest_s, self._last_s = max(self.longest_s, now_s - self._last_s), now_s
