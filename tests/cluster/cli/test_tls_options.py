"""Commands against front ends with TLS: the authority is named, and nothing else is trusted."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.batch.http_client import BatchServer
from cluster.cli.main import main
from cluster.client.router_address import RouterAddress
from cluster.gateway import grpc_server, uvicorn_server
from cluster.gateway.http_app import create_app
from cluster.gateway.uvicorn_server import HttpTls
from engine.errors import ConfigError
from protos.wire.tls import front_end_tls
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
    for more in (["--tls-ca", foreign], ["--address", f"grpc://{address}"]):
        assert main(["generate", "a b", "--address", address, *more]) == 2
        assert "tandem: router at" in capsys.readouterr().err


def test_batch_trusts_the_authority_that_is_named(
    own: Certificates, ports: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "in.jsonl"
    body = {"prompt": "hello", "max_tokens": 2}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    lines.write_text(json.dumps(line))
    command = ["batch", str(lines), str(tmp_path / "out"), "--url", f"https://localhost:{ports[1]}"]
    assert main(command) == 2
    assert "certificate verify failed" in capsys.readouterr().err
    assert main([*command, "--tls-ca", own.authority]) == 0
    assert " two" in (tmp_path / "out").read_text()


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
