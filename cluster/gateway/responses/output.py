"""The output of a response: its items, and the events that tell of them.

    reasoning ──▶ message ──▶ calls ──▶ message, if text came behind a call

Items and events depend on the text alone, and not on the pieces in which it comes. So text behind
the first call waits for the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cluster.api import Tokens, ToolCallDelta
from cluster.gateway.openai_chunks import Json
from engine.types.sequence import FinishReason

ItemKind = Literal["reasoning", "message", "function_call"]
# The type of an event, and its other fields without a sequence number.
OutputEvent = tuple[str, Json]
_PREFIXES: dict[ItemKind, str] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_TEXTS: dict[ItemKind, str] = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


@dataclass(slots=True)
class OutputItem:
    """One item. `texts` are the pieces of its text, or of the arguments of its call."""

    kind: ItemKind
    id: str
    index: int
    call_id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    status: str = "in_progress"

    @property
    def place(self) -> Json:
        """The fields of its events that say where it stands."""
        place = {"item_id": self.id, "output_index": self.index}
        return place if self.kind == "function_call" else place | {"content_index": 0}

    def json(self, *, empty: bool = False) -> Json:
        """The item so far; `empty`: as it was when it began."""
        whole: Json = {"id": self.id, "type": self.kind, "status": self.status}
        content = [] if empty else [self.part()]
        if self.kind == "message":
            return whole | {"role": "assistant", "content": content}
        if self.kind == "reasoning":
            return whole | {"summary": [], "content": content}
        arguments = "" if empty else "".join(self.texts)
        return whole | {"call_id": self.call_id, "name": self.name, "arguments": arguments}

    def part(self, *, empty: bool = False) -> Json:
        """Its content; `empty`: as it was when it began."""
        text = "" if empty else "".join(self.texts)
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        listing = [] if empty else self.logprobs
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": listing}


class ResponseOutput:
    """The items of one response, from its Tokens. The ids of items begin with `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._called = False
        self._behind: list[str] = []  # text behind a call
        self._behind_logprobs: list[Json] = []
        self.finish: FinishReason | None = None
        self.characters = self.reasoning_characters = 0

    def take(self, event: Tokens, logprobs: list[Json]) -> list[OutputEvent]:
        """The events of the next tokens; `logprobs` belong to its text."""
        found: list[OutputEvent] = []
        self.characters += len(event.text) + len(event.reasoning)
        self.reasoning_characters += len(event.reasoning)
        for part in event.in_order():
            if isinstance(part, ToolCallDelta):
                self._call(part, found)
            elif part.reasoning:
                self._text("reasoning", part.text, [], found)
            elif part.text:
                if self._called:
                    self._behind.append(part.text)
                    self._behind_logprobs += logprobs
                else:
                    self._text("message", part.text, logprobs, found)
                logprobs = []
        if event.finish_reason is not None:
            self.finish = event.finish_reason
            self._text("message", "".join(self._behind), self._behind_logprobs, found)
            if not self._items:
                self._begin("message", found)
            self._end("incomplete" if self.finish == "length" else "completed", found)
        return found

    def stop(self) -> None:
        """Note that the open item gets no end."""
        if self._open is not None:
            self._open.status = "incomplete"

    def json(self) -> list[Json]:
        """The items so far."""
        return [item.json() for item in self._items]

    def _call(self, call: ToolCallDelta, found: list[OutputEvent]) -> None:
        self._called = True
        if call.id:
            self._begin("function_call", found, call.id, call.name)
        self.characters += len(call.name) + len(call.arguments)
        self._add(call.arguments, [], found)

    def _text(
        self, kind: ItemKind, text: str, logprobs: list[Json], found: list[OutputEvent]
    ) -> None:
        if text:
            if self._open is None or self._open.kind != kind:
                self._begin(kind, found)
            self._add(text, logprobs, found)

    def _begin(
        self, kind: ItemKind, found: list[OutputEvent], call_id: str = "", name: str = ""
    ) -> None:
        self._end("completed", found)
        index = len(self._items)
        item = OutputItem(kind, f"{_PREFIXES[kind]}_{self._name}_{index}", index, call_id, name)
        self._items.append(item)
        self._open = item
        added = {"output_index": index, "item": item.json(empty=True)}
        found.append(("response.output_item.added", added))
        if kind != "function_call":
            part = item.place | {"part": item.part(empty=True)}
            found.append(("response.content_part.added", part))

    def _add(self, text: str, logprobs: list[Json], found: list[OutputEvent]) -> None:
        item = self._open
        if item is None or not text:
            return
        item.texts.append(text)
        item.logprobs += logprobs
        piece = item.place | {"delta": text}
        if item.kind == "message":
            piece["logprobs"] = logprobs
        found.append((f"{_TEXTS[item.kind]}.delta", piece))

    def _end(self, status: str, found: list[OutputEvent]) -> None:
        item, self._open = self._open, None
        if item is None:
            return
        item.status = status
        text = "".join(item.texts)
        if item.kind == "function_call":
            done = item.place | {"name": item.name, "arguments": text}
        elif item.kind == "message":
            done = item.place | {"text": text, "logprobs": item.logprobs}
        else:
            done = item.place | {"text": text}
        found.append((f"{_TEXTS[item.kind]}.done", done))
        if item.kind != "function_call":
            found.append(("response.content_part.done", item.place | {"part": item.part()}))
        found.append(
            ("response.output_item.done", {"output_index": item.index, "item": item.json()})
        )
