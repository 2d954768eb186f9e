"""The blocks of a message: from the parts of an answer, as events and whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic_core import from_json

from cluster.api import Tokens, ToolCallDelta
from cluster.gateway.openai_chunks import Json

# By the kind of a block: the field with its text, and the name of a piece of it.
_DELTAS = {
    "text": ("text", "text_delta"),
    "thinking": ("thinking", "thinking_delta"),
    "tool_use": ("partial_json", "input_json_delta"),
}
_BROKEN = "INVALID_JSON"


class BlockEvents:
    """Makes the events of blocks, one block at a time. The parts are in their order.

    `thinking` says whether there are blocks of reasoning.
    """

    def __init__(self, thinking: bool) -> None:
        self._thinking = thinking
        self._kind = ""
        self._index = -1

    def take(self, tokens: Tokens) -> Iterator[Json]:
        """The events of the next tokens."""
        for part in tokens.in_order():
            if isinstance(part, ToolCallDelta):
                if part.id:
                    call = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
                    yield from self._begin(call)
                yield from self._piece(part.arguments)
            elif not part.reasoning:
                yield from self._text({"type": "text", "text": ""}, part.text)
            elif self._thinking:
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                yield from self._text(empty, part.text)

    def end(self) -> Iterator[Json]:
        """The end of the last block."""
        if self._kind:
            yield {"type": "content_block_stop", "index": self._index}
            self._kind = ""

    def _text(self, empty: Json, text: str) -> Iterator[Json]:
        if text and self._kind != empty["type"]:
            yield from self._begin(empty)
        yield from self._piece(text)

    def _begin(self, block: Json) -> Iterator[Json]:
        yield from self.end()
        self._kind = block["type"]
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _piece(self, text: str) -> Iterator[Json]:
        if text:
            name, kind = _DELTAS[self._kind]
            delta = {"type": kind, name: text}
            yield {"type": "content_block_delta", "index": self._index, "delta": delta}


@dataclass(slots=True)
class WholeBlocks:
    """Collects the events of blocks, as a client does."""

    _blocks: list[tuple[Json, list[str]]] = field(default_factory=list)

    def take(self, event: Json) -> None:
        """Take the next event of a block."""
        if event["type"] == "content_block_start":
            self._blocks.append((event["content_block"], []))
        elif event["type"] == "content_block_delta":
            block, pieces = self._blocks[event["index"]]
            pieces.append(event["delta"][_DELTAS[block["type"]][0]])

    def json(self) -> list[Json]:
        """The whole blocks."""
        return [_whole(block, "".join(pieces)) for block, pieces in self._blocks]


def _whole(block: Json, text: str) -> Json:
    if block["type"] == "tool_use":
        return block | {"input": _input(text)}
    return block | {_DELTAS[block["type"]][0]: text}


def _input(arguments: str) -> Json:
    """The arguments of a call as an object, as far as it came where the answer was cut.

    Text that is no object stands in `INVALID_JSON`, as Anthropic advises.
    """
    try:
        found = from_json(arguments, allow_inf_nan=False, allow_partial=True) if arguments else {}
        json.dumps(found, allow_nan=False)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {_BROKEN: arguments}
