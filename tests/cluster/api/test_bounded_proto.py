"""Messages whose parts would take many times their bytes are refused before they are parsed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from cluster.api import bounded_proto
from cluster.api.bounded_proto import SMALL_BYTES, check_fields
from cluster.api.limits import MAX_MESSAGE_FIELDS, MAX_PROMPT_TOKENS
from engine.errors import InvalidRequest
from tandem_client.protos import inference_pb2 as wire
from tests.integration.largest_requests import GRPC, MOST_BYTES

# Memory to parse a message of 4 MiB.
MOST_MIB = 12
REFUSED = {
    "messages": "chat",
    "stop": "sampling",
    "stop_token_ids": "sampling",
    "token ids": "token_ids",
    "logit_bias": "sampling",
    "score": "inputs",
    "unpacked": "token_ids",
    "other inputs": "chat",
}
_MEMORY = """
import sys
from pathlib import Path
from cluster.gateway.grpc_methods import Received
from tandem_client.protos import inference_pb2 as wire
from engine.errors import InvalidRequest

def most_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

message = sys.stdin.buffer.read()
kind = getattr(wire, sys.argv[1])
before = most_kib()
try:
    parsed = Received(kind, message)._parse()
except InvalidRequest:
    pass
print((most_kib() - before) / 1024)
"""


def made(name):
    if name == "unpacked":
        ids = b"\x08\x01" * (MOST_BYTES // 2 - 16)
        return b"\x2a" + length(len(ids)) + ids
    if name == "other inputs":
        return b"\x32\x00\x22\x00" * (MOST_BYTES // 4)
    return GRPC[name]()


def length(size):
    found = b""
    while size > 127:
        found, size = found + bytes([size & 127 | 128]), size >> 7
    return found + bytes([size])


def kind_of(name):
    return wire.ScoreRequest if name == "score" else wire.GenerateRequest


@pytest.mark.parametrize("name", REFUSED)
def test_a_message_of_many_parts_is_refused_by_its_field(name):
    with pytest.raises(InvalidRequest, match="more than") as refused:
        check_fields(kind_of(name), made(name))
    assert refused.value.field == REFUSED[name]


@pytest.mark.parametrize("name", [*REFUSED, "a text", "a tenant", "no message"])
def test_no_message_takes_many_times_its_bytes(name):
    """In a process of its own, because the parser's memory is not Python's."""
    run = subprocess.run(
        [sys.executable, "-c", _MEMORY, kind_of(name).__name__],
        input=made(name),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert float(run.stdout) < MOST_MIB


def test_the_largest_message_within_the_bounds_passes():
    chat = [wire.ChatMessage(role="user", content="x" * 1500)] * 2048
    sampling = wire.Sampling(logit_bias=dict.fromkeys(range(1024), 1.0), stop=["x" * 1024] * 16)
    check_fields(
        wire.GenerateRequest,
        wire.GenerateRequest(chat=wire.Chat(messages=chat), sampling=sampling).SerializeToString(),
    )
    ids = wire.TokenIds(ids=[1000] * MAX_PROMPT_TOKENS)
    check_fields(wire.GenerateRequest, wire.GenerateRequest(token_ids=ids).SerializeToString())
    check_fields(wire.GenerateRequest, b"\x32\x00" * MAX_MESSAGE_FIELDS)
    with pytest.raises(InvalidRequest):
        check_fields(wire.GenerateRequest, b"\x32\x00" * (MAX_MESSAGE_FIELDS + 1))


FIELDS = st.lists(
    st.sampled_from(
        [
            b"\x22\x03abc",  # text
            b"\x32\x02\x0a\x00",  # chat, with an empty message
            b"\x3a\x08\x4a\x06\x08\x01\x11\x00\x00\x00",  # a bias that is cut off
            b"\x40\x05",  # n
            b"\xf9\x07" + bytes(8),  # unknown fields of each wire type
            b"\xfd\x07" + bytes(4),
            b"\xfb\x07\x32\x00\xfc\x07",
            b"\x2a\x82\x80\x00\x0a\x00",  # a length of more bytes than it needs
            b"\xff" * 11,
        ]
    ),
    max_size=20,
)


@given(FIELDS)
def test_every_parsed_submessage_was_counted(parts):
    message = b"".join(parts)
    count = bounded_proto._FieldCount(message)
    count.walk(wire.GenerateRequest.DESCRIPTOR, 0, len(message))
    try:
        parsed = wire.GenerateRequest.FromString(message)
    except DecodeError:
        return
    assert count._fields >= parsed.HasField("chat") + len(parsed.chat.messages)


@given(st.binary(max_size=200))
def test_any_bytes_are_counted_to_their_end(message):
    count = bounded_proto._FieldCount(message)
    count.walk(wire.GenerateRequest.DESCRIPTOR, 0, len(message))
    assert count._fields <= len(message)


def test_small_messages_are_not_counted(monkeypatch):
    monkeypatch.setattr(bounded_proto, "MAX_MESSAGE_FIELDS", 0)
    check_fields(wire.GenerateRequest, b"\x32\x00" * (SMALL_BYTES // 2))
