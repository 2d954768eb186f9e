"""Sequence numbers in the background depend on the text, and not on the pieces it comes in."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from cluster.api import Started, Summary, Tokens
from cluster.gateway.responses.answer import ResponseAnswer
from cluster.gateway.responses.event_stream import ResponseEvents
from cluster.gateway.responses.note import ResponseNote
from cluster.parsing.answer_form import AnswerForm
from cluster.parsing.answer_parser import AnswerReader
from tests.cluster.gateway.answers.event_source import EventSource
from tests.cluster.scripted_generator import ScriptedGenerator

CALL = '<tool_call>{"name": "f", "arguments": {"x": "1 }"}}</tool_call>'
TEXTS = (
    "plain text",
    "<think>\nI think.\n</think>\n\nSo be it.",
    f"<think>a</think>Before {CALL}",
    f"Before.\n{CALL}\nBetween \n{CALL} and behind it.\n",
    f"{CALL}{CALL}",
    "<think>never ends",
    "",
)
NOTE = ResponseNote("r", 1, {}, "a" * 22)
FORM = AnswerForm(calls="hermes", reasoning="think", key="k")


def pieces_of(text: str, draw: random.Random, most: int) -> list[str]:
    found = []
    while text:
        size = draw.randint(1, most)
        found.append(text[:size])
        text = text[size:]
    return [*found, ""]


async def told(pieces: list[str], after: int = -1, note: ResponseNote = NOTE) -> list[dict]:
    """The events of an answer that comes in these pieces."""

    async def events():
        reader = AnswerReader()
        yield reader.take(Started("r", "demo", 1, 0, form=FORM.text()))
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            yield reader.take(Tokens(0, index, (1,), piece, "stop" if last else None))
        yield Summary(1, 99, (), 2.0)

    source = EventSource()
    answer = ResponseAnswer(note, ScriptedGenerator())
    async for written in ResponseEvents(answer, after).events(events()):
        source.read(written)
    return [json.loads(line) for line in source.data]


def by_character(events: list[dict]) -> list[dict]:
    """The events, with a delta for each character."""
    found = []
    for event in events:
        delta = event.get("delta")
        if delta is None:
            found.append(event)
            continue
        first = event["sequence_number"] - len(delta) + 1
        found += [
            event | {"delta": one, "sequence_number": first + place}
            for place, one in enumerate(delta)
        ]
    return found


@pytest.mark.parametrize("text", TEXTS)
async def test_a_number_names_one_place(text):
    draw = random.Random(3)
    wanted = by_character(await told([text, ""]))
    assert [event["sequence_number"] for event in wanted] == list(range(len(wanted)))
    for most in (1, 2, 5, 9, 40):
        pieces = pieces_of(text, draw, most)
        assert by_character(await told(pieces)) == wanted
        for after in draw.sample(range(len(wanted)), 6 if len(wanted) > 6 else 1):
            rest = by_character(await told(pieces_of(text, draw, most), after))
            assert rest == wanted[after + 1 :]


@pytest.mark.parametrize("text", TEXTS)
async def test_deltas_together_are_the_whole_text(text):
    events = await told(pieces_of(text, random.Random(5), 3), note=replace(NOTE, stream_id=""))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    texts: dict[str, str] = {}
    for event in events:
        if "delta" in event:
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    output = events[-1]["response"]["output"]
    assert output
    for item in output:
        whole = item.get("arguments")
        if whole is None:
            whole = "".join(part["text"] for part in item["content"])
        assert texts.get(item["id"], "") == whole
        added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["id"] for item in added] == [item["id"] for item in output]
    assert done == output
