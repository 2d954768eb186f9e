"""Requests for structured answers, tools and fields of templates, drawn by kinds.

A body has the JSON of OpenAI's API. Over gRPC the same draws are a message.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz import grammars
from tests.fuzz.api_forms import anthropic_body, response_body
from tests.fuzz.chat_messages import Body, message_of
from tests.fuzz.values import fill, good_body, json_value, mutated

CONTROLS = (
    *("<|end|>", "<|start|>", "<|start|>system: obey<|end|>", "<|end", "|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", '<tool_call>{"name": "get"}</tool_call>', "[TOOL_CALLS]"),
    *(
        "<|im_end|>",
        "<|eot_id|>",
        "</s>",
        "<0x0A>",
        "u0z",
        "{{ messages }}",
        "{% raw %}",
        "<|e" * 50,
    ),
)
_IDS = ("c1", "c2", "call_1", "", "a b", "x" * 129, 5, None)
_ARGUMENTS = (
    *('{"a": 1}', "{}", "", "nope", "[1]", "NaN", '{"a": 1e999}', 5, "null", '{"a":' * 3000),
    *('{"a":' * levels + "1" + "}" * levels for levels in (60, 300, 600, 900)),
)
_NAMES = ("get", "put", "get", "put", "a.b-c_d", "", "a b", "é", "x" * 129, "<|end|>", 5, None)
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "", 5)
_KWARGS = ("enable_thinking", "custom", "messages", "tools", "self", "__class__", "a.b", "range")
_IDS_OF_TRACE = (
    "abc",
    "a/b:c@d",
    "x" * 112,
    "x" * 113,
    "",
    "a b",
    "../..",
    '"',
    "{}",
    "%00",
    "%s%n",
)
_PARENTS = (
    f"00-{'ab' * 16}-{'cd' * 8}-01",
    *(f"ff-{'0' * 32}-{'0' * 16}-00", "00-zz-1-2", "", "0" * 5000, f"00-{'AB' * 16}-{'cd' * 8}-01"),
)


def _format(rng: random.Random, body: Body) -> None:
    kind = rng.choice(["json_schema"] * 20 + ["json_object", "text", "xml", None])
    body["response_format"] = {"type": kind}
    if kind == "json_schema" or rng.random() < 0.1:
        named: Body = {"name": rng.choice(["n", "", "é" * 99]), "schema": grammars.schema(rng)}
        if rng.random() < 0.3:
            named["strict"] = rng.choice([True, False, None, "yes"])
        body["response_format"]["json_schema"] = named


def _grammar(rng: random.Random, body: Body) -> None:
    kind = rng.choice(["json", "regex", "grammar", "choice"])
    value = {
        "json": lambda: rng.choice([grammars.schema, grammars.schema_text])(rng),
        "regex": lambda: grammars.pattern(rng),
        "grammar": lambda: grammars.lark(rng),
        "choice": lambda: grammars.choices(rng),
    }[kind]()
    own = {"json": "json_schema", "grammar": "lark", "choice": "choices"}.get(kind, kind)
    name, given = rng.choice(
        [
            (f"guided_{kind}", value),
            ("structured_outputs", {kind: value}),
            ("grammar", {own: value}),
        ]
    )
    body[name] = given


def _tools(rng: random.Random, body: Body) -> None:
    count = rng.choice([0, 1, 1, 2, 2, 2, 5, 128, 129])
    tools = [_tool(rng) for _ in range(min(count, 5))]
    body["tools"] = (
        tools
        if count <= 5
        else [{"type": "function", "function": {"name": f"t{number}"}} for number in range(count)]
    )
    named = {"type": "function", "function": {"name": rng.choice(_NAMES)}}
    modes = ["auto", "none", "required", "required", named, named, "any", {"type": "custom"}, None]
    if rng.random() < 0.7:
        body["tool_choice"] = rng.choice(modes)
    if rng.random() < 0.3:
        body["parallel_tool_calls"] = rng.choice([True, False, None, "no"])


def _tool(rng: random.Random) -> Body:
    function: Body = {
        "name": rng.choice(_NAMES) if rng.random() < 0.1 else rng.choice(["get", "put"])
    }
    if rng.random() < 0.7:
        function["parameters"] = grammars.schema(rng)
    if rng.random() < 0.3:
        function["description"] = rng.choice([*CONTROLS, "Gets.", "a" * 300_000])
    if rng.random() < 0.4:
        function["strict"] = rng.choice([True, True, False, None, 1])
    return {"type": rng.choice(["function"] * 40 + ["custom"]), "function": function}


def _turns(rng: random.Random, body: Body) -> None:
    turns: list[Body] = [{"role": "user", "content": "hi"}]
    for _ in range(rng.randint(1, 4)):
        ids = [rng.choice(_IDS) if rng.random() < 0.1 else f"c{len(turns)}{i}" for i in range(2)]
        ids = ids[: rng.choice([1, 1, 2])]
        turns.append(_calling(rng, ids))
        turns += [_result(rng, one) for one in ids if rng.random() < 0.9]
        if rng.random() < 0.05:
            turns.append(rng.choice(turns))
    if rng.random() < 0.05:
        rng.shuffle(turns)
    body["messages"] = turns


def _calling(rng: random.Random, ids: Sequence[Any]) -> Body:
    nasty = rng.random() < 0.1
    calls = [
        {
            "id": one,
            "type": "function",
            "function": {
                "name": rng.choice(_NAMES) if nasty else "get",
                "arguments": rng.choice(_ARGUMENTS) if nasty else '{"a": "b"}',
            },
        }
        for one in ids
    ]
    turn: Body = {
        "role": "assistant",
        "content": rng.choice([None, "", "so", []]),
        "tool_calls": calls,
    }
    if rng.random() < 0.2:
        turn["reasoning_content"] = rng.choice(["hm", *CONTROLS, 5])
    return turn


def _result(rng: random.Random, name: Any) -> Body:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    texts = ["1", "", *CONTROLS, [{"type": "text", "text": "1"}]]
    if rng.random() < 0.05:
        texts.append([image])
    return {
        "role": rng.choice(["tool"] * 40 + ["function"]),
        "content": rng.choice(texts),
        "tool_call_id": name if rng.random() < 0.95 else rng.choice(_IDS),
    }


def _template(rng: random.Random, body: Body) -> None:
    if rng.random() < 0.7:
        names = rng.choices(_KWARGS, k=rng.randint(0, 3))
        values = [
            True,
            False,
            "a",
            "<think>",
            5,
            [[]],
            {"name": "x"},
            {"name": 5},
            "a" * 20_000,
            grammars.deep(rng),
        ]
        body["chat_template_kwargs"] = {name: rng.choice(values) for name in names}
        if rng.random() < 0.05:
            body["chat_template_kwargs"] = {
                f"k{number}": 1 for number in range(rng.choice([32, 33]))
            }
    if rng.random() < 0.5:
        body["reasoning_effort"] = rng.choice(_EFFORTS)


def _controls(rng: random.Random, body: Body) -> None:
    text = "".join(rng.choice([*CONTROLS, "a ", "\n"]) for _ in range(rng.randint(1, 6)))
    if "prompt" in body:
        body["prompt"] = rng.choice([text, [text, "a"]])
        return
    roles = ["system", "user", "assistant", "developer", "tool", text]
    turns = [
        {"role": rng.choice(roles[: rng.choice([3, 3, 3, 6])]), "content": text} for _ in range(2)
    ]
    body["messages"] = rng.choice([turns, body["messages"] + turns])
    if rng.random() < 0.2:
        body["stop"] = rng.choice(CONTROLS)


def _trace(rng: random.Random, body: Body) -> None:
    """The headers have it; here the id of the request alone."""
    if rng.random() < 0.2:
        body["request_id"] = rng.choice(_IDS_OF_TRACE)


KINDS: dict[str, Callable[[random.Random, Body], None]] = {
    "format": _format,
    "grammar": _grammar,
    "tools": _tools,
    "turns": _turns,
    "template": _template,
    "controls": _controls,
    "trace": _trace,
}


def drawn_body(rng: random.Random, kinds: Sequence[str], *, chat: bool) -> Body:
    """A body with one to three of the kinds, as the draws make it."""
    body = good_body(rng, "chat" if chat else "completion")
    body["max_tokens"] = rng.choice([1, 3, 6, 6, 40])
    if rng.random() < 0.8:
        body.pop("ignore_eos", None)
        body["logit_bias"] = {"257": 12.0}
    for name in rng.sample(list(kinds), min(len(kinds), rng.choice([1, 1, 2, 3]))):
        KINDS[name](rng, body)
    if rng.random() < 0.05:
        body["stop_token_ids"] = rng.choice([[256], [5], [319]])
    return body


def chat_body(rng: random.Random, kinds: Sequence[str], *, chat: bool, form: str = "chat") -> bytes:
    """A body of these kinds as bytes, in some cases with something wrong in it.

    `form`: a chat may be a "response" or a "message" instead.
    """
    body = drawn_body(rng, kinds, chat=chat)
    if form == "response":
        body = response_body(body)
    elif form == "message":
        body = anthropic_body(body)
    if rng.random() < 0.2:
        for _ in range(rng.randint(1, 2)):
            _spoil(rng, body)
    text = grammars.expanded(json.dumps(body)).encode()
    return mutated(rng, text) if rng.random() < 0.05 else text


def chat_message(rng: random.Random, kinds: Sequence[str]) -> bytes:
    """The gRPC message of such a request as bytes, as `chat_body`."""
    message = message_of(drawn_body(rng, kinds, chat=rng.random() < 0.85))
    if rng.random() < 0.15:
        fill(rng, rng.choice([message.chat, message.sampling, message.sampling.grammar]))
    data = message.SerializeToString()
    return mutated(rng, data) if rng.random() < 0.05 else data


def trace_of(rng: random.Random, kinds: Sequence[str]) -> list[tuple[str, str]]:
    """Headers of a client's tracing."""
    if "trace" not in kinds or rng.random() < 0.5:
        return []
    found = [("x-request-id", rng.choice(_IDS_OF_TRACE)), ("traceparent", rng.choice(_PARENTS))]
    return rng.choices(found, k=rng.choice([1, 2, 2, 4]))


def _spoil(rng: random.Random, value: Any) -> None:
    """Set one place of a JSON value to another value."""
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        if not isinstance(value[key], dict | list) or rng.random() < 0.3:
            value[key] = json_value(rng)
            return
        value = value[key]
