"""What a stream mode means for holding tokens back and for telling progress."""

from __future__ import annotations

import pytest

from cluster.api import Progress, Tokens
from cluster.config.endpoints import EndpointConfig, FlushConfig
from cluster.config.schema import parse_config
from cluster.config.stream_mode import delivery_of
from cluster.router.decode_progress import EVERY_S, DecodeProgress
from engine.errors import ConfigError


def test_each_token_by_itself_is_not_delayed() -> None:
    assert delivery_of(EndpointConfig(stream="tokens")).flush_delay_s == 0


def test_chunks_are_made_as_the_flush_says_and_are_what_comes_of_nothing() -> None:
    found = delivery_of(EndpointConfig(flush=FlushConfig(50, 7)))
    assert (found.flush_delay_s, found.flush_tokens, found.at_end) == (0.05, 7, False)


@pytest.mark.parametrize("asked", [False, True])
def test_progress_comes_of_the_endpoint_or_of_the_request(asked: bool) -> None:
    for mode, tells in (("tokens", False), ("chunks", False), ("progress", True), ("whole", False)):
        endpoint = EndpointConfig(stream=mode)
        assert delivery_of(endpoint, asked).progress == (tells or asked)
        assert delivery_of(endpoint, asked).at_end == (mode in ("progress", "whole"))


@pytest.mark.parametrize(
    ("endpoint", "fault"),
    [
        ({"stream": "all"}, "endpoints.chat.stream: expected"),
        ({"flush": {"ms": 0}}, "ms must be positive; stream: tokens sends each token by itself"),
        ({"stream": "whole", "flush": {"ms": 9}}, "flush is for stream: chunks, not whole"),
    ],
)
def test_invalid_values_are_refused(endpoint: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"endpoints": {"chat": endpoint}})
    assert fault in caught.value.message


def test_progress_of_an_answer_is_seldom_and_never_ahead() -> None:
    clock, put = [0.0], []
    tell = DecodeProgress(put.append, 100, lambda: clock[0])
    for index in range(100):
        last = index == 99
        tell(Tokens(1, index, (7,), "x", "length" if last else None))
        clock[0] += EVERY_S / 8
    told = [event for event in put if isinstance(event, Progress)]
    assert told == [Progress(1, "decode", 1 + 8 * number, 100) for number in range(13)]
    assert sum(isinstance(event, Tokens) for event in put) == 100
    assert put[1] == told[0]
