"""A short run of `make fuzz`, always with the same requests."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from tandem_client.protos import inference_pb2 as wire
from tests.fuzz.chats import KINDS, chat_body, chat_message
from tests.fuzz.main import attack, faults, serving
from tests.fuzz.values import fuzzed_body, fuzzed_message, json_value

REQUESTS = 300


def test_no_fuzzed_request_breaks_a_cluster_or_disturbs_a_bystander():
    with serving() as cluster:
        began_s = time.monotonic()
        found = asyncio.run(attack(cluster, REQUESTS, seed=1))
        chats = asyncio.run(attack(cluster, REQUESTS // 2, seed=46, kinds=list(KINDS)))
        assert faults(cluster, found, time.monotonic() - began_s) == [] == chats.bad
    served = {fuzzer: words.total() for fuzzer, words in found.words.items()}
    assert served == dict.fromkeys(("http", "grpc", "websocket", "stranger", "member"), 60)
    assert found.words["http"]["200"] and found.words["grpc"]["OK"] and found.words["member"]
    assert found.bystander_tokens > 100
    assert chats.words["http"]["200"] > 5 and chats.words["grpc"]["OK"] > 10


def test_requests_are_drawn_alike_from_the_same_seed():
    for make in (
        lambda rng: fuzzed_body(rng, "chat"),
        lambda rng: fuzzed_body(rng, "response"),
        lambda rng: fuzzed_body(rng, "message"),
        lambda rng: fuzzed_message(rng, wire.GenerateRequest),
        lambda rng: chat_body(rng, list(KINDS), chat=True),
        lambda rng: chat_body(rng, list(KINDS), chat=True, form="response"),
        lambda rng: chat_body(rng, list(KINDS), chat=True, form="message"),
        lambda rng: chat_message(rng, list(KINDS)),
    ):
        first, second = ([make(random.Random(n)) for n in range(50)] for _ in range(2))
        assert first == second and len(set(first)) > 30


class _Longest(random.Random):
    """Draws a list each time, and the last of what there is to choose."""

    def randrange(self, *_: object) -> int:  # type: ignore[override]
        return 6

    def choice(self, seq: Any) -> Any:
        return seq[-1]


def test_no_body_is_so_long_that_the_fuzzer_itself_stands():
    def values(value: Any) -> int:
        return len(value) * values(value[0]) if isinstance(value, list) else 1

    assert values(json_value(_Longest())) <= 1000
