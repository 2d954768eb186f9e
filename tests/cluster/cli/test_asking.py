"""`tandem generate` and `tandem chat`: answers on the terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from cluster.client.terminal import stream_answer
from tandem_client import Tokens
from tests.cluster.cli.fake_router import Router, run


def test_generate_streams_and_passes_the_sampling(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    flags = ["--max-tokens", "7", "--temperature", "0", "--stop", "a", "--stop", "b", "--timing"]
    code, out, err = run(capsys, "generate", "Hello", "--address", router.address, *flags)
    assert (code, out) == (0, "Good day\n")
    assert err == "2 tokens in 500 ms, the first after 250 ms\n"
    (asked,) = router.inference.asked
    assert asked.text == "Hello"
    assert asked.sampling.max_tokens == 7
    assert list(asked.sampling.stop) == ["a", "b"]


def test_a_resumable_answer_names_its_stream(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    code, out, err = run(capsys, "generate", "Hi", "--resumable", "--address", router.address)
    assert (code, out, err) == (0, "Good day\n", "stream s\n")


def test_the_rest_of_a_stream_comes_from_the_next_router(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    stream = "A" * 22
    routers = f"127.0.0.1:1,{router.address}"
    code, out, err = run(capsys, "resume", stream, "--have", "1", "--address", routers)
    assert (code, out, err) == (0, " day\n", f"stream {stream}\n")
    (asked,) = router.inference.resumed
    assert (asked.stream_id, list(asked.have)) == (stream, [1])
    code, out, _ = run(capsys, "generate", "Hi", "--address", routers)
    assert (code, out) == (0, "Good day\n")


def test_a_command_about_one_router_takes_one_address(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    routers = f"{router.address},{router.address}"
    code, _, err = run(capsys, "role", "prefill#a", "decode", "--address", routers)
    assert code == 2
    assert routers in err


def test_chat_answers_a_prompt_once(capsys: pytest.CaptureFixture[str], router: Router) -> None:
    code, out, _ = run(capsys, "chat", "Hi", "--system", "Be kind.", "--address", router.address)
    assert (code, out) == (0, "Good day\n")
    turns = [(turn.role, turn.content) for turn in router.inference.asked[0].chat.messages]
    assert turns == [("system", "Be kind."), ("user", "Hi")]


def test_a_conversation_carries_its_history(
    capsys: pytest.CaptureFixture[str], router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["Hi", "", "And?"])

    def read(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    code, out, _ = run(capsys, "chat", "--address", router.address)
    assert code == 0
    assert out.count("Good day") == 2
    turns = [turn.content for turn in router.inference.asked[1].chat.messages]
    assert turns == ["Hi", "Good day", "And?"]


def test_a_reader_that_goes_away_ends_it_quietly(router: Router) -> None:
    command = [
        sys.executable,
        "-m",
        "cluster.cli.main",
        "generate",
        "x",
        "--address",
        router.address,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        error = process.stderr.read()
    assert process.wait(60) == 1
    assert error == b""


async def test_an_answer_is_closed_where_it_cannot_be_written() -> None:
    closed = []

    async def answer() -> AsyncIterator[Tokens]:
        try:
            yield Tokens(0, 0, (1,), "a")
        finally:
            closed.append(True)

    events, out = answer(), io.StringIO()
    out.close()
    with pytest.raises(ValueError, match="closed file"):
        await stream_answer(events, out)
    assert closed
