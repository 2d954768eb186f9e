"""Random requests: drawn from the schema, and then mutated."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from cluster.gateway.messages.requests import MessagesRequest
from cluster.gateway.openai_fields import IGNORED, REFUSED
from cluster.gateway.openai_requests import ChatRequest, CompletionRequest
from cluster.gateway.responses.requests import ResponseRequest
from tandem_client.protos import inference_pb2 as wire

_NASTY_NUMBERS = (0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64)
_NASTY_FLOATS = (0.5, -0.0, 1e308, -1e308, 5e-324)
_NASTY_TEXTS = ("", "\x00", "\ud800", "é" * 50, "𝄞", "{{ 7*7 }}", "<|end|>", "a" * 5000, "\r\nx: y")
# Of a request that is served: little work, so that many fit into a run.
_GOOD = {
    "max_tokens": lambda rng: rng.randint(1, 6),
    "temperature": lambda rng: rng.choice([0, 0.7, 2]),
    "top_p": lambda rng: rng.random() or 1.0,
    "n": lambda rng: rng.choice([1, 1, 1, 2, 3]),
    "seed": lambda rng: rng.getrandbits(63),
    "stop": lambda rng: rng.choice(["x", ["a", "b"], []]),
    "stream": lambda rng: rng.random() < 0.5,
    "logprobs": lambda rng: rng.choice([None, 1]),
    "logit_bias": lambda rng: {str(rng.randrange(300)): rng.uniform(-5, 5)},
    "presence_penalty": lambda rng: rng.uniform(-2, 2),
    "ignore_eos": lambda rng: True,
}


def known_fields() -> list[str]:
    """Every field that a JSON request may have, in some form of request."""
    found = set(_GOOD) | set(IGNORED) | set(REFUSED)
    for form in (ChatRequest, CompletionRequest, MessagesRequest, ResponseRequest):
        found |= set(form.model_fields)
    return sorted(found)


FIELDS = known_fields()


def json_value(rng: random.Random, depth: int = 0) -> Any:
    """Any value of JSON, more often a nasty one than not.

    A list may be long, but none is long within a long one: such a body would have gigabytes.
    """
    kind = rng.randrange(9)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([*_NASTY_NUMBERS, 10 ** rng.choice([20, 100, 400]), rng.getrandbits(40)])
    if kind == 2:
        return rng.choice(_NASTY_FLOATS)
    if kind <= 5 or depth > 3:
        return rng.choice([*_NASTY_TEXTS, *FIELDS, "demo", str(rng.getrandbits(64))])
    size = rng.choice([0, 1, 2, 3, 200])
    if kind <= 7:
        if size > 3:
            return [json_value(rng, 4)] * size
        return [json_value(rng, depth + 1) for _ in range(size)]
    return {str(json_value(rng, 4)): json_value(rng, depth + 1) for _ in range(min(size, 5))}


def good_body(rng: random.Random, form: str) -> dict[str, Any]:
    """A body that is served: a "chat", a "completion", a "response" or a "message"."""
    if form == "response":
        text = f"hello {rng.random()}"
        items = [{"role": "user", "content": [{"type": "input_text", "text": text}]}]
        return {"max_output_tokens": rng.randint(1, 6), "input": rng.choice([text, items])}
    body: dict[str, Any] = {"model": "demo", "max_tokens": rng.randint(1, 6)}
    if form == "message":
        text = f"hello {rng.random()}"
        content = rng.choice([text, [{"type": "text", "text": text}]])
        return body | {"messages": [{"role": "user", "content": content}]}
    chat = form == "chat"
    if chat:
        body["messages"] = [{"role": "user", "content": f"hello {rng.random()}"}]
    else:
        body["prompt"] = rng.choice([f"hello {rng.random()}", [1, 2, rng.randrange(200)]])
    for name in rng.sample(sorted(_GOOD), rng.randint(0, 4)):
        value = _GOOD[name](rng)
        body[name] = bool(value) if chat and name == "logprobs" else value
    return body


def fuzzed_body(rng: random.Random, form: str) -> bytes:
    """A body as a client may send it: with wrong values, or as bytes that are no JSON."""
    body: Any = good_body(rng, form)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 5])):
        body[rng.choice(FIELDS)] = json_value(rng)
    if rng.random() < 0.03:
        body = json_value(rng)
    text = json.dumps(body).encode()
    return mutated(rng, text) if rng.random() < 0.25 else text


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The bytes with a few of them changed, doubled, or missing."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        if not found:
            return bytes([rng.randrange(256)])
        at = rng.randrange(len(found))
        kind = rng.randrange(4)
        if kind == 0:
            found[at] = rng.randrange(256)
        elif kind == 1:
            del found[at : at + rng.randint(1, 20)]
        elif kind == 2:
            found[at:at] = found[at : at + rng.randint(1, 200)] * rng.randint(1, 5)
        else:
            found[at:at] = rng.randbytes(rng.randint(1, 16))
    return bytes(found)


def good_message(rng: random.Random) -> wire.GenerateRequest:
    """A gRPC request that is served."""
    request = wire.GenerateRequest(text=f"hello {rng.random()}")
    request.sampling.max_tokens = rng.randint(1, 6)
    if rng.random() < 0.5:
        request.token_ids.ids.extend(rng.sample(range(250), 5))
    return request


def fill(rng: random.Random, message: Message, depth: int = 0) -> None:
    """Set random fields of a message to values that its types allow."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() > 0.3 or depth > 3:
            continue
        if field.is_repeated:
            _fill_repeated(rng, message, field, depth)
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            fill(rng, getattr(message, field.name), depth + 1)
        else:
            setattr(message, field.name, _scalar(rng, field))


def fuzzed_message(rng: random.Random, kind: Callable[[], Message]) -> bytes:
    """A message of that kind as bytes: drawn from its schema, or mutated."""
    message = good_message(rng) if kind is wire.GenerateRequest else kind()
    if rng.random() < 0.8:
        fill(rng, message)
    data = message.SerializeToString()
    return mutated(rng, data) if rng.random() < 0.3 else data


def _fill_repeated(
    rng: random.Random, message: Message, field: FieldDescriptor, depth: int
) -> None:
    target = getattr(message, field.name)
    # Long lists inside long lists would take this process longer than the server.
    count = rng.choice([1, 2, 300, 5000]) if depth == 0 else rng.choice([1, 2, 3, 100])
    if field.message_type is None:
        target.extend([_scalar(rng, field)] * count)
    elif field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        for _ in range(min(count, 300)):
            target[_scalar(rng, key)] = _scalar(rng, value)
    else:
        for _ in range(min(count, 300) if depth == 0 else min(count, 3)):
            fill(rng, target.add(), depth + 1)


def _scalar(rng: random.Random, field: FieldDescriptor) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice([0, 1, 40]))
        texts = [text for text in _NASTY_TEXTS if text != "\ud800"]
        return rng.choice([*texts, "demo", "user", "chat"])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice([*_NASTY_FLOATS, math.nan, math.inf, -math.inf, 0.7])
    bits = 32 if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_INT32) else 64
    signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([0, 1, 2, 77])
    most = 2 ** (bits - signed) - 1
    return rng.choice([0, 1, 2, 5, most, most // 2, rng.randint(0, most)])
