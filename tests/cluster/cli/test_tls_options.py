"""Commands against front ends with TLS: the authority is named, and nothing else is trusted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.batch.http_client import BatchServer
from cluster.cli.main import main
from cluster.client.connect_hint import router_hint
from cluster.gateway import grpc_server, uvicorn_server
from cluster.gateway.http_app import create_app
from cluster.gateway.uvicorn_server import HttpTls
from engine.errors import ConfigError
from protos.wire.tls import front_end_tls
from tandem_client import RouterAddress
from tests.certificates import Certificates
from tests.cluster.gateway.http_listener import metrics
from tests.cluster.scripted_generator import ScriptedGenerator


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def ports(own: Certificates) -> Iterator[tuple[int, int]]:
    """The gRPC and the HTTP port of front ends in a thread, because commands run loops."""
    tls, found = front_end_tls(own.issue().identity), list[int]()
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        rpc = await grpc_server.start(ScriptedGenerator(), tls=tls)
        app = create_app(ScriptedGenerator(), metrics)
        shown = HttpTls(lambda: tls.get().context)
        http = await uvicorn_server.start(app, tls=shown, grace_s=1)
        found.extend((rpc.port, http.port))
        ready.set()
        await asyncio.to_thread(over.wait, 60)
        await rpc.stop(0)
        await http.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    yield found[0], found[1]
    over.set()
    thread.join(30)


def test_generate_trusts_the_authority_that_is_named(
    own: Certificates,
    ports: tuple[int, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"localhost:{ports[0]}"
    assert main(["generate", "a b", "--address", address, "--tls-ca", own.authority]) == 0
    assert capsys.readouterr().out == "one two three four\n"
    monkeypatch.setenv("TANDEM_TLS_CA", own.authority)
    assert main(["generate", "a b", "--address", f"grpcs://{address}"]) == 0
    capsys.readouterr()
    foreign = Certificates(tmp_path, "foreign").authority
    untrusted = "its certificate is not trusted: name the file of its authority with --tls-ca"
    for more, hint in (
        (["--tls-ca", foreign], untrusted),
        (["--address", f"grpc://{address}"], f"it speaks TLS: write grpcs://{address}"),
    ):
        assert main(["generate", "a b", "--address", address, *more]) == 2
        error = capsys.readouterr().err
        assert error.startswith("tandem: router at")
        assert hint in error


def test_batch_trusts_the_authority_that_is_named(
    own: Certificates, ports: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "in.jsonl"
    body = {"prompt": "hello", "max_tokens": 2}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    lines.write_text(json.dumps(line))
    command = ["batch", str(lines), str(tmp_path / "out"), "--url", f"https://localhost:{ports[1]}"]
    for untrusting in (command, ["bench", "--url", command[-1]]):
        assert main(untrusting) == 2
        assert ": its certificate is not trusted: name the file" in capsys.readouterr().err
    assert main([*command, "--tls-ca", own.authority]) == 0
    assert " two" in (tmp_path / "out").read_text()


@pytest.mark.parametrize(
    ("scheme", "hint"),
    [
        ("", "it speaks TLS: write grpcs://{}, and name the file of its authority with"),
        ("grpcs://", "its certificate is not trusted: name the file of its authority with"),
    ],
)
def test_one_line_names_the_option_to_set(ports: tuple[int, int], scheme: str, hint: str) -> None:
    address = f"localhost:{ports[0]}"
    command = [sys.executable, "-m", "cluster.cli.main", "status", "--address", scheme + address]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    start = f"tandem: router at {scheme}{address}: "
    assert done.returncode == 1
    assert done.stderr == f"{start}{hint.format(address)} --tls-ca or TANDEM_TLS_CA\n"


def test_a_certificate_for_another_name_is_told_from_a_foreign_one(
    own: Certificates, ports: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    own.issue("elsewhere.example")
    time.sleep(1.1)
    assert main(["status", "--address", f"localhost:{ports[0]}", "--tls-ca", own.authority]) == 1
    assert "its certificate is refused: Hostname mismatch" in capsys.readouterr().err


def test_a_server_without_tls_is_told_from_a_closed_port(
    own: Certificates, capsys: pytest.CaptureFixture[str]
) -> None:
    async def hint(port: int) -> str | None:
        return await router_hint(RouterAddress.at(f"127.0.0.1:{port}", own.authority))

    async def both() -> list[str | None]:
        server = await grpc_server.start(ScriptedGenerator())
        open_port = await hint(server.port)
        await server.stop(0)
        return [open_port, await hint(server.port)]

    plain = "it speaks no TLS: leave out grpcs:// and --tls-ca (TANDEM_TLS_CA)"
    closed = "nothing listens there: start `tandem serve`, or name another address"
    assert asyncio.run(both()) == [plain, closed]


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["generate", "x"],
        ["batch", "in", "out", "--url", "https://localhost:1"],
        ["keys", "list", "--redis", "rediss://localhost:1"],
        ["bench", "--url", "https://localhost:1"],
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_file_without_a_certificate_is_named_with_its_option(
    command: list[str],
    named: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").touch()
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate")
    if not named:
        monkeypatch.setenv("TANDEM_TLS_CA", str(empty))
    assert main([*command, *(["--tls-ca", str(empty)] if named else [])]) == 2
    fault = f"{empty}: holds no certificate in PEM form"
    assert capsys.readouterr().err == f"tandem: --tls-ca (or TANDEM_TLS_CA): {fault}\n"


def test_an_address_says_whether_tls_is_used(own: Certificates) -> None:
    assert RouterAddress.at("host:1").roots is None
    assert RouterAddress.at("http://host:1", own.authority).roots is None
    assert RouterAddress.at("host:1", own.authority).roots == Path(own.authority).read_bytes()
    assert str(RouterAddress.at("https://host:1", own.authority)) == "grpcs://host:1"
    assert RouterAddress.at("[::1]:1").target == "[::1]:1"
    with pytest.raises(ConfigError, match="'ftp://host:1' is no address"):
        RouterAddress.at("ftp://host:1")
    with pytest.raises(ConfigError, match="/no/ca: cannot be read"):
        RouterAddress.at("host:1", "/no/ca")
    with pytest.raises(ConfigError, match="/no/ca: cannot be read"):
        BatchServer.at("https://host:1", None, "/no/ca")
