"""Mixed requests, their undisturbed answers, and what became of each beside its answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from cluster.api import Event, Resumability, Started, Summary, Tokens
from cluster.api.event_streams import closing
from engine.errors import (
    Cancelled,
    InvalidRequest,
    NotFound,
    Overloaded,
    TandemError,
    Unavailable,
)
from engine.types.sampling_params import SamplingParams
from tests.chaos.cancels import CancelWay, cancel
from tests.chaos.faults import Fault
from tests.chaos.web_clients import Clients, FrontEnd
from tests.exactness import Case, excused, tie_of_a_draw

OnTokens = Callable[[str, int, int], None]

ENDS_S = 90.0
_LOGPROB_ERROR = 2e-3
_GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
_SEEDED: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}
# A request that is cancelled has so many tokens, and ends at about that time, or has many more.
LATE_TOKENS = 100
_PENALTIES = {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.1}


@dataclass(frozen=True)
class Request:
    """A request: its name, its kind, its prompt as token ids, and its options."""

    name: str
    kind: str
    prompt: tuple[int, ...]
    options: dict[str, Any]


def requests(seed: int, each: int) -> list[Request]:
    """So many requests of each kind, with prompts of up to 900 tokens."""
    rng = random.Random(f"requests {seed}")
    found = []
    for number in range(each):
        length = round(900 ** rng.uniform(0.3, 1.0))
        prompt = tuple(rng.randrange(256) for _ in range(length))
        some = {"max_tokens": rng.choice([100, 300, 600]), "seed": rng.randrange(1 << 30)}
        greedy, seeded = _GREEDY | some, _SEEDED | some
        kinds = {
            "greedy": greedy,
            "seeded": seeded,
            "penalties": seeded | _PENALTIES,
            "logprobs": seeded | {"logprobs": 2},
            "n": seeded | {"n": 3},
            "stop": greedy | {"stop": ["\x00never"]},
            "batch": greedy | {"endpoint": "batch"},
            "cancel": greedy | {"max_tokens": LATE_TOKENS if number % 2 else 1000},
            "score": {},
        }
        for kind, options in kinds.items():
            unlike = (*prompt[: length - 1], (prompt[-1] + len(found)) % 256)
            found.append(Request(f"{kind}-{number}", kind, unlike, options))
    return found


@dataclass
class Answer:
    """What came: token ids by choice, text, log-probabilities, reasons, or scores.

    `left`: its client did not read it to its end.
    """

    ids: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    logprobs: list[float] = field(default_factory=list)
    finish: dict[int, str | None] = field(default_factory=dict)
    scores: list[float] = field(default_factory=list)
    repeated: int = 0
    suspended: bool = False
    started: bool = False
    ended: bool = False
    left: bool = False


@dataclass(eq=False)
class Stream:
    """One request on its way, and its fate:

    exact       it equals its undisturbed answer
    tie         it differs from it by rounding alone
    cancelled   its client ended it
    refused     a retryable error came before its start
    unjournaled its router was taken away while its client knew that it cannot be resumed
    broken      a retryable error ended it, its router was taken away, and it cannot be resumed;
                or any error, where the whole cluster ended
    lost, repeated, wrong, endless: what must not be
    """

    name: str
    request: Request
    resumable: bool
    cancel_after: int = 0
    cancel_way: CancelWay = "once"
    front_end: FrontEnd = "grpc"
    answer: Answer = field(default_factory=Answer)
    error: BaseException | None = None
    fate: str = ""
    longest_s: float = 0.0
    why: str = ""

    async def run(self, clients: Clients, tenant: str, on_tokens: OnTokens) -> None:
        """Send it and read it to its end, which must come within ENDS_S.

        `on_tokens` hears of its name, how many tokens came and how many are wanted.
        """
        options = self.request.options | {"request_id": self.name, "tenant": tenant}
        try:
            async with asyncio.timeout(ENDS_S):
                if self.request.kind == "score":
                    await self._score(clients, tenant)
                else:
                    await self._read(clients, options | {"resumable": self.resumable}, on_tokens)
        except (TandemError, TimeoutError) as error:
            self.error = error

    async def _score(self, clients: Clients, tenant: str) -> None:
        texts = [list(self.request.prompt)]
        [found] = await clients.grpc.score(texts, request_id=self.name, tenant=tenant)
        self.answer.scores = list(found.scores.logprobs)
        self.answer.ended = True

    async def _read(self, clients: Clients, options: dict[str, Any], on_tokens: OnTokens) -> None:
        last_s, stream_id = time.monotonic(), ""
        cancels = list[asyncio.Task[None]]()
        events = clients.of(self.front_end).generate(self.request.prompt, **options)
        try:
            async with closing(events):
                async for event in events:
                    now_s = time.monotonic()
                    self.longest_s, last_s = max(self.longest_s, now_s - last_s), now_s
                    if isinstance(event, Started):
                        stream_id = event.stream_id
                    have = self._take(event)
                    if have:
                        on_tokens(self.name, have, options["max_tokens"])
                    if self.cancel_after and have >= self.cancel_after:
                        self.cancel_after = 0
                        where = clients, self.front_end, self.name, stream_id
                        cancels.append(asyncio.create_task(cancel(self.cancel_way, *where)))
                        if self.cancel_way == "leaving":
                            self.answer.left = True
                            return
        finally:
            await asyncio.gather(*cancels)

    def _take(self, event: Event) -> int:
        """Note an event; the number of tokens of its choice."""
        answer = self.answer
        if isinstance(event, Started):
            answer.started = True
        elif isinstance(event, Resumability):
            answer.suspended = event.suspended
        elif isinstance(event, Summary):
            answer.ended = True
        elif isinstance(event, Tokens):
            ids = answer.ids.setdefault(event.choice, [])
            if event.index != len(ids):
                answer.repeated += 1
            ids += event.ids
            answer.text[event.choice] = answer.text.get(event.choice, "") + event.text
            answer.finish[event.choice] = event.finish_reason
            if event.choice == 0:
                answer.logprobs += [one.logprob for one in event.sampled]  # type: ignore[misc]
            return len(ids)
        return 0

    def judge(self, want: Answer, model: torch.nn.Module, fault: Fault) -> None:
        """Set the fate under a fault, beside the undisturbed answer."""
        self.fate, self.why = self._judged(want, model, fault)

    def _judged(self, want: Answer, model: torch.nn.Module, fault: Fault) -> tuple[str, str]:
        got, error = self.answer, self.error
        if isinstance(error, TimeoutError):
            return "endless", f"no end within {ENDS_S:g} s"
        if got.repeated:
            return "repeated", "tokens came again or were left out"
        different = self._different(want, model)
        if different:
            return different
        if error is not None:
            return self._ended_by(error, fault)
        if self.request.kind == "cancel" and (got.left or got.ids.get(0) != want.ids.get(0)):
            return "cancelled", ""
        if not got.ended or any(len(got.ids.get(n, ())) < len(ids) for n, ids in want.ids.items()):
            return "lost", "the stream ended early"
        if got.finish != want.finish or got.text != want.text:
            return "wrong", f"{got.finish} {want.finish}, or another text"
        return "exact", ""

    def _ended_by(self, error: BaseException, fault: Fault) -> tuple[str, str]:
        why = f"{type(error).__name__}: {error}" + ", suspended" * self.answer.suspended
        if self.request.kind == "cancel" and isinstance(error, Cancelled):
            return "cancelled", ""
        if isinstance(error, Overloaded | Unavailable) and not self.answer.started:
            return "refused", why
        # The journal has too little of the stream, or never had its beginning.
        behind = isinstance(error, InvalidRequest | NotFound)
        if fault.breaks_streams and self.answer.suspended and behind:
            return "unjournaled", why
        broken = fault.breaks_streams and not self.resumable and isinstance(error, Unavailable)
        if broken or fault.ends_cluster:
            return "broken", why
        return "lost", why

    def _different(self, want: Answer, model: torch.nn.Module) -> tuple[str, str] | None:
        for choice, ids in self.answer.ids.items():
            expected = want.ids.get(choice, [])
            pairs = enumerate(zip(expected, ids, strict=False))
            place = next((at for at, (one, other) in pairs if one != other), None)
            if place is not None:
                tokens = (expected[place], ids[place])
                tie = self._tie(model, expected, choice, ids)
                return "tie" if tie else "wrong", f"choice {choice}, token {place}: {tokens}"
            if len(ids) > len(expected):
                return "wrong", f"choice {choice} has {len(ids)} tokens, not {len(expected)}"
        for name in ("logprobs", "scores"):
            pairs = zip(getattr(self.answer, name), getattr(want, name), strict=False)
            worst = max((abs(one - other) for one, other in pairs), default=0.0)
            if worst > _LOGPROB_ERROR:
                return "wrong", f"{name} differ by {worst:.4f}"
        return None

    def _tie(
        self, model: torch.nn.Module, expected: list[int], choice: int, got: list[int]
    ) -> bool:
        """Whether rounding alone explains where two answers first differ."""
        options, prompt = self.request.options, self.request.prompt
        names = ("temperature", "seed", *_PENALTIES)
        sampling = SamplingParams(**{name: options[name] for name in names if name in options})
        if sampling.temperature > 0.0:
            return tie_of_a_draw(model, prompt, expected, sampling, got, choice)
        return excused(model, Case(prompt, sampling, tuple(expected)), tuple(got))
