"""Refused calls are tried again when their router said, and no others."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from cluster.api import Event, GenerateRequest
from cluster.api.event_streams import closing
from cluster.gateway.grpc_server import start
from tandem_client import Client, Overloaded, Tokens, Unavailable, errors
from tests.cluster.scripted_generator import ScriptedGenerator, raised


class Refusing(ScriptedGenerator):
    """Refuses the first calls, one error each."""

    def __init__(self, *refusals: Exception) -> None:
        super().__init__()
        self.refusals = list(refusals)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        if self.refusals:
            raise self.refusals.pop(0)
        async with closing(super().generate(request)) as events:
            async for event in events:
                yield event


async def answered(generator: ScriptedGenerator, *, retries: int, **options: object) -> float:
    """Seconds until the answer of one call."""
    server, began_s = await start(generator), time.monotonic()
    try:
        async with Client(f"127.0.0.1:{server.port}", retries=retries) as client:
            assert (await client.complete("a", **options)).text == "one two three four"
    finally:
        await server.stop(0)
    return time.monotonic() - began_s


@pytest.mark.parametrize("resumable", [False, True])
async def test_the_retry_time_is_waited_for(resumable):
    busy = Refusing(Overloaded("full", retry_after_s=0.3), Overloaded("full", retry_after_s=0.2))
    assert 0.5 <= await answered(busy, retries=2, resumable=resumable) < 20


async def test_so_many_retries_and_no_more():
    busy = Refusing(*[Overloaded("full", retry_after_s=0.01)] * 9)
    error = await raised(answered(busy, retries=2))
    assert type(error) is Overloaded and error.retry_after_s == 0.01
    assert len(busy.refusals) == 6
    assert type(await raised(answered(busy, retries=0))) is Overloaded
    assert len(busy.refusals) == 5


async def test_a_wait_beyond_the_deadline_is_not_begun():
    busy, began_s = Refusing(Overloaded("full", retry_after_s=90.0)), time.monotonic()
    error = await raised(answered(busy, retries=1, timeout_s=30.0))
    assert type(error) is Overloaded
    assert time.monotonic() - began_s < 25


@pytest.mark.parametrize("kind", [errors.InvalidRequest, errors.Internal, errors.Cancelled])
async def test_what_never_succeeds_is_not_tried_again(kind):
    wrong = Refusing(kind("no"))
    assert type(await raised(answered(wrong, retries=5))) is kind


async def test_an_answer_that_began_is_not_tried_again():
    generator = ScriptedGenerator(error=Unavailable("gone", retry_after_s=0.01), after=2)
    server, got = await start(generator), []
    async with Client(f"127.0.0.1:{server.port}", retries=5) as client:
        with pytest.raises(Unavailable, match="gone"):
            async for event in client.generate("a"):
                got.append(event)  # noqa: PERF401
    await server.stop(0)
    assert [type(event) for event in got[1:]] == [Tokens]
    assert len(generator.requests) == 1


async def test_unary_calls_are_tried_again_too():
    generator = Refusing(Overloaded("full", retry_after_s=0.1))
    server = await start(generator)
    async with Client(f"127.0.0.1:{server.port}", retries=1) as client:
        assert (await client.score([[1, 2]]))[0].ids == (0, 1)
    await server.stop(0)
