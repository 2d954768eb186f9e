"""Makes Anthropic's messages from the events of a request: whole, or as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from cluster.api import Event, Generator, Heartbeat, Progress, Started, Summary, Tokens
from cluster.api.event_streams import closing
from cluster.gateway.answers.comments import SilenceFiller
from cluster.gateway.messages.blocks import BlockEvents, WholeBlocks
from cluster.gateway.messages.requests import MessagesCall
from cluster.gateway.messages.stop_match import StopMatch
from cluster.gateway.openai_chunks import Json, UsageCount
from cluster.gateway.sse import dump
from engine.types.sequence import FinishReason

_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


def event(document: Json) -> bytes:
    """One event with the name of its type."""
    name: str = document["type"]
    return b"event: " + name.encode() + b"\ndata: " + dump(document) + b"\n\n"


PING = event({"type": "ping"})


class MessagesReply:
    """One message; take either `whole()` or `events()`."""

    def __init__(self, call: MessagesCall, generator: Generator) -> None:
        self._call = call
        self._generator = generator
        self._model = generator.model.name
        self._blocks = BlockEvents(call.thinking)
        self._stops = StopMatch(call.request.sampling.stop, generator.text)
        self._finish: FinishReason = "stop"
        self._prompt_tokens = 0
        self._usage = UsageCount()
        self._begun = False

    async def whole(self) -> bytes:
        """Collect everything; the message as JSON. Raises a TandemError."""
        blocks, message = WholeBlocks(), {}
        async with closing(self._documents()) as found:
            async for _, documents in found:
                for one in documents:
                    blocks.take(one)
                    if one["type"] == "message_start":
                        message = one["message"]
                    elif one["type"] == "message_delta":
                        message |= one["delta"] | {"usage": one["usage"]}
                        message |= {"timing": one["timing"]} if "timing" in one else {}
        return dump(message | {"content": blocks.json()})

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, only pings before the first token; raises a TandemError."""
        silence = SilenceFiller(PING)
        async with closing(self._documents()) as found:
            async for one, documents in found:
                written = silence.filled(one, b"".join(map(event, documents)))
                if written:
                    yield written

    async def _documents(self) -> AsyncIterator[tuple[Event, list[Json]]]:
        """Each event of the request, with the documents that it brings."""
        async with closing(self._generator.generate(self._call.request)) as events:
            async for one in events:
                match one:
                    case Tokens():
                        yield one, [*self._tokens(one)]
                    case Heartbeat() | Progress():
                        yield one, [{"type": "ping"}]
                    case Started():
                        self._model = one.model or self._model
                        self._prompt_tokens = one.prompt_tokens
                    case Summary():
                        self._usage.add(one)
                        yield one, [*self._ending()]
        self._usage.check(1)

    def _tokens(self, tokens: Tokens) -> Iterator[Json]:
        if not self._begun:
            self._begun = True
            yield {"type": "message_start", "message": self._empty()}
        self._stops.take(tokens)
        self._finish = tokens.finish_reason or self._finish
        yield from self._blocks.take(tokens)

    def _ending(self) -> Iterator[Json]:
        yield from self._blocks.end()
        stop = None if self._finish == "length" else self._stops.found()
        reason = _REASONS[self._finish] if stop is None else "stop_sequence"
        delta = {"stop_reason": reason, "stop_sequence": stop}
        cached = self._usage.cached_tokens
        usage = _usage(self._usage.prompt_tokens - cached, self._usage.completion_tokens, cached)
        timing = {"timing": self._usage.timing(1)} if self._call.timing else {}
        yield {"type": "message_delta", "delta": delta, "usage": usage, **timing}
        yield {"type": "message_stop"}

    def _empty(self) -> Json:
        return {
            "id": f"msg_{self._call.request.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._prompt_tokens, 0, 0),
        }


def _usage(input_tokens: int, output_tokens: int, cached_tokens: int) -> Json:
    """`usage`; the input tokens are the tokens that were not cached."""
    return {
        "input_tokens": input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }
