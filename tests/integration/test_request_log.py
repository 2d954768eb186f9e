"""One request's life, followed by its id through the logs of router, prefill and decode."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cluster.api import Tokens
from cluster.telemetry.logging_setup import LineFormatter
from engine.errors import NotFound, Overloaded
from tests.eventually import eventually
from tests.integration.local import cluster, slow_steps

PACKAGES = ("cluster", "decode_pool", "engine", "kv_transfer", "prefill_pool")


class Lines(logging.Handler):
    """Every record at the level info and above."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, request_id: str, package: str = "") -> list[str]:
        """The log lines of a package about a request, in order."""
        return [
            record.getMessage()
            for record in self.records
            if vars(record).get("request_id") == request_id and record.name.startswith(package)
        ]

    def last(self, request_id: str, message: str) -> dict[str, object]:
        """The fields of the last such line."""
        return next(
            vars(record)
            for record in reversed(self.records)
            if vars(record).get("request_id") == request_id and record.getMessage() == message
        )


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    loggers = [logging.getLogger(name) for name in PACKAGES]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    yield handler
    for logger, level in zip(loggers, before, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


ROUTER = ["request accepted", "request assigned", "first token passed on", "request ended"]
PREFILL = ["prefill waits", "prefill started", "first token sampled", "KV handed over"]
DECODE = ["decode waits", "decode started", "decode ended"]


async def test_a_request_is_followed_from_its_arrival_to_its_end(config, lines):
    async with cluster(config) as local:
        await local.client.complete([3] * 300, max_tokens=5, ignore_eos=True, request_id="whole")
        await local.idle()
    assert lines.of("whole", "cluster") == ROUTER
    assert lines.of("whole", "prefill_pool") == PREFILL
    assert lines.of("whole", "decode_pool") == DECODE
    order = lines.of("whole")
    assert order.index("prefill started") < order.index("first token passed on")
    assert order.index("first token sampled") < order.index("decode started")
    assigned = lines.last("whole", "request assigned")
    assert (assigned["prefill"], assigned["decode"]) == ("prefill-0", "decode-0")
    assert lines.last("whole", "decode ended")["tokens"] == 5
    # One line each, whatever is in it.
    assert all("\n" not in LineFormatter().format(record) for record in lines.records)


async def test_every_choice_has_its_own_lines(config, lines):
    async with cluster(config) as local:
        await local.client.complete([3] * 300, max_tokens=3, ignore_eos=True, n=2, request_id="two")
        await local.idle()
    for message in (*ROUTER[1:3], *PREFILL, *DECODE):
        choices = {
            vars(record)["choice"]
            for record in lines.records
            if record.getMessage() == message and vars(record).get("request_id") == "two"
        }
        assert choices == {0, 1}, message
    assert lines.of("two").count("request ended") == 1


async def test_a_cancelled_request_says_so_on_every_side(config, lines):
    async with cluster(config) as local:
        events = local.client.generate(
            [3] * 300, max_tokens=2000, ignore_eos=True, request_id="gone"
        )
        async for event in events:
            if isinstance(event, Tokens) and event.index > 3:
                break
        await events.aclose()
        await local.idle()
        await eventually(lambda: "decode cancelled" in lines.of("gone"))
    assert lines.of("gone", "cluster.router") == ROUTER[:3]
    assert lines.last("gone", "request ended")["outcome"] == "cancelled"
    assert "decode ended" not in lines.of("gone")


async def test_a_failed_request_tells_why(config, lines):
    async with cluster(config) as local:
        with pytest.raises(NotFound):
            await local.client.complete([3], endpoint="nonsense", request_id="bad")
    assert lines.of("bad") == ["request accepted", "request ended"]
    ended = lines.last("bad", "request ended")
    assert ended["outcome"] == "NotFound"
    assert "nonsense" in str(ended["reason"])


async def test_a_request_that_waits_and_is_refused_tells_both(config, lines):
    config = replace(
        config,
        kv=replace(config.kv, blocks=20),
        endpoints={
            "chat": replace(config.endpoints["chat"], ttft_budget_ms=2000, max_output_tokens=4000)
        },
    )
    async with cluster(config) as local:
        slow_steps(local.decode, 0.03)  # the blocks are free in 6 s at the earliest
        events = local.client.generate([3] * 100, max_tokens=200, ignore_eos=True)
        await anext(events)
        with pytest.raises(Overloaded):
            await local.client.complete(
                [4] * 100, max_tokens=200, ignore_eos=True, request_id="late"
            )
        await events.aclose()
    assert lines.of("late") == ["request accepted", "request queued", "request ended"]
    ended = lines.last("late", "request ended")
    assert ended["outcome"] == "Refused"
    assert "no capacity now" in str(ended["reason"])
