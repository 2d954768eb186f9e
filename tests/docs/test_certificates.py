"""The certificates that the page makes with OpenSSL are those that its configuration asks for."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from cluster.client.connect_hint import router_hint
from cluster.config.schema import parse_config
from cluster.gateway import grpc_server
from docs.check import read_pages
from protos.wire.tls import front_end_tls
from tandem_client import Client, RouterAddress
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.docs.test_names import blocks


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_the_commands_make_what_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (page,) = (one for one in read_pages() if one.path.name == "certificates.md")
    (commands,) = (text for text in blocks(page, "bash") if "openssl" in text)
    (settings,) = (text for text in blocks(page, "yaml") if " tls/front.pem" in text)
    monkeypatch.chdir(tmp_path)
    await asyncio.to_thread(_run, commands)
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "tls").iterdir()} == {0}
    tls = parse_config(yaml.safe_load(settings)).tls
    tls.check()
    assert tls.front_ends is not None
    server = await grpc_server.start(
        ScriptedGenerator(), tls=front_end_tls(tls.front_ends.identity)
    )
    try:
        for host in ("localhost", "127.0.0.1"):
            address = RouterAddress.at(f"{host}:{server.port}", "tls/authority.pem")
            async with Client(address) as client:
                assert (await client.model()).context_tokens
            assert await router_hint(address) is None
    finally:
        await server.stop(0)


def _run(commands: str) -> None:
    subprocess.run(["bash", "-ec", commands], check=True, capture_output=True, timeout=60)
