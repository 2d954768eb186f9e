"""A Generator that follows a script: deterministic tokens, chosen errors, recorded endings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field

from cluster.api import (
    ChatPrompt,
    ChoiceSummary,
    Event,
    GenerateRequest,
    Heartbeat,
    ModelCard,
    Progress,
    ResumeRequest,
    Scored,
    ScorePrompt,
    StageTime,
    Started,
    Summary,
    TextPrompt,
    TokenPrompt,
    Tokens,
)
from cluster.api.event_streams import closing
from engine.errors import Cancelled, NotFound, TandemError
from engine.types.sampling_params import check_token
from engine.types.scores import Scores
from engine.types.sequence import SampledToken
from tests.cluster.scripted_streams import ScriptedJournal

VOCABULARY = 256
WORDS = ("one", " two", " three", " four", " five", " six", " seven", " eight")
CARD = ModelCard(
    name="demo",
    architecture="LlamaForCausalLM",
    dtype="float32",
    context_tokens=4096,
    vocabulary=VOCABULARY,
    endpoints=("chat", "report"),
    created=1_700_000_000,
    lanes=("interactive", "batch"),
)


class WordOffsets:
    """Where each of the words begins."""

    def __init__(self) -> None:
        self._characters = 0

    def push(self, token: int) -> int:
        offset = self._characters
        self._characters += len(WORDS[token]) if token < len(WORDS) else 1
        return offset


@dataclass
class ScriptedGenerator:
    """Counts from one; with `error`, raises it after `after` events; `endless` never stops.

    Generators of one `journal` are routers of one cluster.
    """

    error: Exception | None = None
    after: int = 0
    endless: bool = False
    pause_s: float = 0.0
    heartbeats: int = 0  # before the first token
    gone: tuple[str, ...] = ()
    ill: tuple[str, ...] = ()
    requests: list[GenerateRequest] = field(default_factory=list)
    counted: list[ChatPrompt] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    running: dict[str, asyncio.Event] = field(default_factory=dict)
    journal: ScriptedJournal = field(default_factory=ScriptedJournal)

    @property
    def model(self) -> ModelCard:
        return CARD

    def missing(self) -> tuple[str, ...]:
        return self.gone

    def unhealthy(self) -> tuple[str, ...]:
        return self.ill

    def token_text(self, token: int) -> str:
        return WORDS[token] if token < len(WORDS) else "bytes:\\xff"

    def offsets(self) -> WordOffsets:
        return WordOffsets()

    def text(self, ids: Sequence[int]) -> str:
        return "".join(WORDS[token] if token < len(WORDS) else "\ufffd" for token in ids)

    async def cancel(self, request_id: str, tenant: str) -> bool:
        if request_id not in self.running:
            return False
        self.running[request_id].set()
        return True

    async def cancel_stream(self, stream_id: str, tenant: str) -> bool:
        try:
            stream = self.journal.stream(stream_id, tenant)
        except NotFound:
            return False
        if stream.ended:
            return False
        stream.end_with(Cancelled("the request was cancelled"))
        return True

    async def resume(self, request: ResumeRequest) -> AsyncIterator[Event]:
        self.journal.resumed.append(request)
        self.journal.stream(request.stream_id, request.tenant)
        rest = self.journal.follow(request.stream_id, request.have, True, request.follow)
        async with closing(rest) as events:
            async for event in events:
                yield event

    async def count_tokens(self, model: str, prompt: ChatPrompt) -> int:
        if self.error is not None:
            raise self.error
        self.counted.append(prompt)
        return self._check(GenerateRequest(prompt, model=model))

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        if not request.resumable:
            events = self._run(request)
        else:
            stream_id, stream = self.journal.open(request.tenant, request.note, request.stream_id)
            filling = self.journal.fill(stream_id, self._run(request))
            stream.task = asyncio.create_task(filling)
            events = self.journal.follow(stream_id, (), False)
        async with closing(events):
            async for event in events:
                yield event

    async def _run(self, request: GenerateRequest) -> AsyncIterator[Event]:
        self.requests.append(request)
        cancelled = asyncio.Event()
        self.running[request.request_id] = cancelled
        sent = 0
        try:
            async for event in self._events(request):
                if self.error is not None and sent == self.after:
                    raise self.error
                if cancelled.is_set():
                    raise Cancelled("the request was cancelled")
                yield event
                sent += 1
            self.finished.append(request.request_id)
        finally:
            del self.running[request.request_id]
            self.closed.append(request.request_id)

    async def _events(self, request: GenerateRequest) -> AsyncIterator[Event]:
        prompt_tokens = self._check(request)
        self.started.append(request.request_id)
        seed = 7 if request.sampling.seed is None else request.sampling.seed
        if request.progress:
            yield Progress(0, "queued", 0, prompt_tokens, 2, 1.25)
        yield Started(request.request_id, CARD.name, prompt_tokens, seed)
        if request.progress:
            yield Progress(0, "prefill", 1, prompt_tokens)
        for _ in range(self.heartbeats):
            yield Heartbeat()
        if isinstance(request.prompt, ScorePrompt):
            yield _scored(request.prompt, prompt_tokens)
        # No longer than the context, which ends a real answer, too.
        most = min(request.sampling.max_tokens or 4, CARD.context_tokens)
        index = 0
        while self.endless or index < most:
            await asyncio.sleep(self.pause_s)
            for choice in range(request.n):
                last = not self.endless and index == most - 1
                yield self._tokens(request, choice, index, last)
            index += 1
        yield summary_of(request, prompt_tokens, most)

    def _tokens(self, request: GenerateRequest, choice: int, index: int, last: bool) -> Tokens:
        token = index % len(WORDS)
        sampled: tuple[SampledToken, ...] = ()
        if request.sampling.logprobs is not None:
            best = [(token, -0.5), (200, float("-inf"))]
            sampled = (SampledToken(token, -0.5, tuple(best[: request.sampling.logprobs])),)
        return Tokens(choice, index, (token,), WORDS[token], "length" if last else None, sampled)

    def _check(self, request: GenerateRequest) -> int:
        if request.model not in ("", CARD.name):
            raise NotFound(f"the model {request.model!r} is not served here", field="model")
        if request.endpoint not in ("", *CARD.endpoints):
            raise NotFound(f"no endpoint is named {request.endpoint!r}", field="endpoint")
        request.sampling.check(VOCABULARY)
        match request.prompt:
            case TextPrompt(text):
                return len(text.split())
            case TokenPrompt(ids):
                for token in ids:
                    check_token("prompt", token, VOCABULARY)
                return len(ids)
            case ScorePrompt(TokenPrompt(ids)):
                return len(ids)
            case ScorePrompt(TextPrompt(text)):
                return len(text.split())
            case ChatPrompt(messages):
                return sum(len(message.content.split()) for message in messages)


def _scored(prompt: ScorePrompt, tokens: int) -> Scored:
    """Token n is n, and has -n/10; its likeliest candidates are those behind it."""
    ids = range(tokens)
    top_ids = [position + rank for position in ids[1:] for rank in range(prompt.top)]
    top = [-0.1 * (rank + 1) for _ in ids[1:] for rank in range(prompt.top)]
    return Scored(tuple(ids), 1, Scores([-position / 10 for position in ids[1:]], top_ids, top))


def summary_of(request: GenerateRequest, prompt_tokens: int, most: int) -> Summary:
    stages = (StageTime("prefill", 0.1, 0.3), StageTime("decode", 0.35, 1.35))
    choices = tuple(
        ChoiceSummary(
            *(choice, 0.1, 0.2, 0.05, 0.35, 0.02, 0.01, 1.0, choice, "p0", "d0"),
            stages=stages if request.timing else (),
        )
        for choice in range(request.n)
    )
    return Summary(prompt_tokens, most * request.n, choices, 1.5)


async def raised(work: Awaitable[object]) -> TandemError:
    """The TandemError that `work` ends with."""
    try:
        await work
    except TandemError as error:
        return error
    raise AssertionError("nothing was raised")
