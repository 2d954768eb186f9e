"""`tandem bench`, from its arguments to its files, against a small server."""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from bench.load.command import run
from bench.load.options import add_arguments, read_budgets, read_load, read_scale
from bench.load.traces import FITTED
from cluster.api import ChatPrompt
from cluster.cli import main as cli
from engine.errors import ConfigError, Unavailable
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import ScriptedGenerator

_METRICS = b"# TYPE tandem_router_running_requests gauge\ntandem_router_running_requests 2.0\n"


def _options(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


class CompletionServer:
    """Lists a model, has metrics, and answers each completion with its tokens at once."""

    def __init__(self):
        self.heads, self.bodies, self.unknown, self.key = [], [], (), ""

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        path, status = head.split()[1], "200 OK"
        if self.key not in head:
            status, body = "401 Unauthorized", b'{"error": "no key"}'
        elif path == "/v1/models":
            body = json.dumps({"data": [{"id": "tiny"}]}).encode()
        elif path == "/metrics":
            body = _METRICS
        else:
            size = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
            self.bodies.append(json.loads(await reader.readexactly(size)))
            body = self.stream(self.bodies[-1]["max_tokens"])
            if any(name in self.bodies[-1] for name in self.unknown):
                status = "400 Bad Request"
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()
        await writer.wait_closed()

    def stream(self, tokens):
        events = [{"choices": [{"text": "a"}]}] * tokens
        events.append({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}})
        return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


@asynccontextmanager
async def _listening():
    server = CompletionServer()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        yield server, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


_SHORT = ("--rate", "40", "--before", "0.2", "--burst", "0.1", "--drain", "0.1")
# However busy the machine is.
_PATIENT = ("--ttft-ms", "60000", "--itl-ms", "60000", "--stall-ms", "60000")


async def test_a_run_writes_json_and_a_page(tmp_path, capsys):
    out = tmp_path / "made" / "report"
    async with _listening() as (server, url):
        options = _options("--url", url, "--out", str(out), "--metrics", url, *_SHORT, *_PATIENT)
        assert await asyncio.to_thread(run, options) == 0
    data = json.loads(out.with_name("report.json").read_text())
    requests = data["figures"]["phases"]["all"]["requests"]
    assert requests == len(server.bodies) - 1 == data["figures"]["phases"]["all"]["within_goals"]
    assert data["watched"]["running"][0][1] == 2.0
    assert out.with_name("report.html").read_text().startswith("<!doctype html>")
    captured = capsys.readouterr()
    assert f"{requests} of {requests} within the budgets" in captured.out
    assert "requests in 0.4 s: Poisson at 40/s" in captured.err
    assert f"\nbench: 0 of 0 s, 0 of {requests} sent, 0 in flight\n" in captured.err
    assert {body["model"] for body in server.bodies} == {"tiny"}
    assert all(body["ignore_eos"] for body in server.bodies)


async def test_ids_are_asked_for_unless_they_are_refused(tmp_path):
    given = ("--out", str(tmp_path / "x"), *_SHORT)
    async with _listening() as (server, url):
        await asyncio.to_thread(run, _options("--url", url, *given))
        assert all(body["return_token_ids"] for body in server.bodies)
        server.bodies.clear()
        server.unknown = ("return_token_ids",)
        assert await asyncio.to_thread(run, _options("--url", url, *given)) == 0
    assert [body.get("return_token_ids") for body in server.bodies[:2]] == [True, None]
    assert not any("return_token_ids" in body for body in server.bodies[1:])


async def test_chats_of_an_endpoint_on_tandems_own_front_end(tmp_path):
    generator = ScriptedGenerator()
    out = tmp_path / "chat"
    async with front_end(generator) as port:
        given = ("--chat", "--endpoint", "report", "--vocabulary", "200", "--new-tokens", "3")
        url = ("--url", f"http://127.0.0.1:{port}", "--out", str(out))
        assert await asyncio.to_thread(run, _options(*given, *url, *_SHORT)) == 0
    assert {request.endpoint for request in generator.requests} == {"report"}
    assert {type(request.prompt) for request in generator.requests} == {ChatPrompt}
    for request in json.loads(out.with_name("chat.json").read_text())["requests"]:
        # The role opens the reply and is no token.
        assert sum(count for _, count in request["messages"]) == request["tokens"] == 3


async def test_a_sweep_names_its_knee(tmp_path, capsys):
    out = tmp_path / "sweep"
    async with _listening() as (_, url):
        given = ("--rates", "20,60", "--step", "0.2", "--out", str(out), "--url", url)
        assert await asyncio.to_thread(run, _options("sweep", *given)) == 0
    data = json.loads(out.with_name("sweep.json").read_text())
    assert [step["rate"] for step in data["steps"]] == [20, 60]
    captured = capsys.readouterr()
    assert captured.out.startswith("20/s: ") and "The knee is at" in captured.out
    assert "sweep: 0 of 0 s, 20/s, 0 of " in captured.err
    page = out.with_name("sweep.html").read_text()
    assert "The knee is at" in page
    assert page.count("<svg") == 2


def test_lengths_that_are_none_are_refused_by_name():
    with pytest.raises(ValueError, match="--prompt-tokens: '64-100' is not A:B"):
        read_load(_options("--prompt-tokens", "64-100"))


def test_rates_that_are_none_are_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        _options("sweep", "--rates", "1,fast")
    assert "--rates: '1,fast' is not numbers by commas" in capsys.readouterr().err


async def test_a_sweep_is_drawn_beside_an_earlier_one(tmp_path):
    async with _listening() as (_, url):
        for title, more in (("static", ()), ("continuous", ("--beside", tmp_path / "static.json"))):
            given = ("--rates", "40", "--step", "0.2", "--title", title, "--url", url)
            out = ("--out", tmp_path / title)
            options = _options("sweep", *given, *map(str, (*out, *more)))
            assert await asyncio.to_thread(run, options) == 0
    page = (tmp_path / "continuous.html").read_text()
    assert "Throughput and latency of continuous" in page
    assert page.count("<svg") == 3
    assert "static" in page


async def test_a_key_is_sent_and_must_be_there(tmp_path, monkeypatch):
    async with _listening() as (server, url):
        given = ("--url", url, "--out", str(tmp_path / "x"), "--key-env", "SOME_KEY", *_SHORT)
        with pytest.raises(ConfigError, match="SOME_KEY is not set"):
            await asyncio.to_thread(run, _options(*given))
        monkeypatch.setenv("SOME_KEY", "secret")
        await asyncio.to_thread(run, _options(*given))
    assert all("Authorization: Bearer secret\r\n" in head for head in server.heads)


async def test_a_server_that_wants_a_key_leads_to_the_option(tmp_path):
    async with _listening() as (server, url):
        server.key = "Bearer secret"
        options = _options("--url", url, "--out", str(tmp_path / "x"), *_SHORT)
        with pytest.raises(Unavailable, match=r"--key-env.*401 Unauthorized.*no key"):
            await asyncio.to_thread(run, options)


@pytest.mark.parametrize(
    "given",
    [
        ("sweep", "--beside", "/nowhere"),
        ("--prompt-tokens", "9:3"),
        ("--url", "host"),
        ("--trace", "/nowhere"),
        ("--burst", "0"),
    ],
)
def test_wrong_arguments_are_a_configuration_error(given):
    with pytest.raises(ConfigError):
        run(_options(*given))


def test_a_missing_server_is_unavailable():
    with pytest.raises(Unavailable, match="http://127"):
        run(_options("--url", "http://127.0.0.1:1"))


def test_a_known_trace_is_fitted_but_for_what_is_given():
    scale = read_scale(_options("--trace", "x/azure2023_conv.csv.gz", "--trace-speed", "2"))
    assert scale.speed == 2
    assert scale.shrink == FITTED["azure2023_conv"].shrink


def test_budgets_and_seeds():
    assert read_budgets(_options("--ttft-ms", "500")).ttft_s == 0.5
    assert read_load(_options()) == read_load(_options("--seed", "1"))
    assert read_load(_options()).arrivals != read_load(_options("--seed", "2")).arrivals


def test_the_command_says_in_one_line_what_is_wrong(capsys):
    assert cli.main(["bench", "--url", "http://127.0.0.1:1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tandem: http://127.0.0.1:1: ")
    assert error.count("\n") == 1
