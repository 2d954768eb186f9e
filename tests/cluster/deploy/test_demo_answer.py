"""The question that `tandem serve` asks its own router."""

from __future__ import annotations

import io

import pytest

from cluster.deploy.demo_answer import answer_demo
from cluster.deploy.startup_progress import StartupProgress
from cluster.gateway.grpc_server import start
from engine.errors import Unauthenticated
from tandem_client.router_address import RouterAddress
from tests.cluster.scripted_generator import ScriptedGenerator

KEY = "TANDEM_API_KEY"


@pytest.fixture
def without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)


async def shown(generator: ScriptedGenerator, out: io.StringIO | None = None) -> tuple[str, int]:
    """What the terminal shows, and the port of the router."""
    out, server = out or io.StringIO(), await start(generator)
    try:
        address = RouterAddress(f"127.0.0.1:{server.port}")
        await answer_demo(address, out, StartupProgress(out))
    finally:
        await server.stop(0)
    return out.getvalue(), server.port


async def test_the_answer_and_its_times_are_shown(without_key: None) -> None:
    text, _ = await shown(ScriptedGenerator())
    assert "> What is Tandem?\none two three" in text and "the first after" in text


class _Closed(io.StringIO):
    """A terminal, or a pipe, that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


async def test_the_cluster_serves_on_where_nobody_reads_the_answer(without_key: None) -> None:
    await shown(ScriptedGenerator(), _Closed())


async def test_without_a_key_it_says_how_to_ask_with_a_key(without_key: None) -> None:
    text, port = await shown(ScriptedGenerator(error=Unauthenticated("an API key is needed")))
    command = f'tandem generate "What is Tandem?" --address 127.0.0.1:{port}'
    assert text.endswith(f"(ask with an API key: TANDEM_API_KEY=KEY {command})\n")
    assert "no answer" not in text


async def test_a_wrong_key_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "wrong")
    text, _ = await shown(ScriptedGenerator(error=Unauthenticated("this API key is not known")))
    assert text.endswith("(no answer: this API key is not known)\n")
