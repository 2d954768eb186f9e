"""Secrets, keys and certificates that the chart makes: they hold, and an upgrade keeps them."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.chart import (
    CHART,
    Object,
    documents,
    example,
    example_objects,
    files_of,
    one,
    pods,
    render,
)


def secret(found: Any, name: str) -> dict[str, str]:
    data = one(found, "Secret", name)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def test_made_keys_are_in_the_file_by_their_hashes() -> None:
    made = secret(example_objects("laptop-kind"), "tandem-keys")
    hashes = {
        kind: hashlib.sha256(made[f"{kind}-key"].encode()).hexdigest()
        for kind in ("client", "operator", "metrics")
    }
    assert yaml.safe_load(made["keys.yaml"]) == {
        "tenants": {"default": [hashes["client"]]},
        "operators": {"operator": [hashes["operator"]]},
        "metrics": {"prometheus": [hashes["metrics"]]},
    }
    pod = dict(pods(example_objects("laptop-kind")))["router"]
    assert {key for name, key in files_of(pod).values() if name == "tandem-keys"} == {"keys.yaml"}


def test_made_secrets_are_long_and_new() -> None:
    first, second = (documents(render(example("laptop-kind"))) for _ in range(2))
    for name, key in {
        "tandem-cluster": "secret",
        "tandem-ray-token": "auth_token",
        "tandem-redis": "password",
    }.items():
        assert len(secret(first, name)[key]) >= 32
        assert secret(first, name) != secret(second, name)


def _side(files: dict[str, str], folder: Path, *, server: bool) -> ssl.SSLContext:
    for key, text in files.items():
        (folder / key).write_text(text)
    purpose = ssl.Purpose.CLIENT_AUTH if server else ssl.Purpose.SERVER_AUTH
    context = ssl.create_default_context(purpose, cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A handshake in memory; raises ssl.SSLError where one refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert all(side.version() for side in sides)


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ("internal", "tandem.internal"),
        ("redis", "tandem-redis"),
        ("front-ends", "tandem.serving.svc"),
        ("front-ends", "tandem-grpc.serving.svc"),
    ],
)
def test_made_certificates_hold_in_a_handshake(server: str, name: str, tmp_path: Path) -> None:
    """Both sides show one: replicas to each other and to Redis."""
    found = example_objects("laptop-kind")
    for side in ("server", "client"):
        (tmp_path / side).mkdir()
    ours = _side(secret(found, "tandem-tls-internal"), tmp_path / "client", server=False)
    theirs = _side(secret(found, f"tandem-tls-{server}"), tmp_path / "server", server=True)
    shake(theirs, ours, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(theirs, ours, "example.com")


@pytest.fixture
def chart_with_secrets(tmp_path: Path) -> Path:
    """A copy of the chart whose look-ups answer from `global`, as a cluster would."""
    copy = tmp_path / "tandem"
    shutil.copytree(CHART, copy)
    for file in (copy / "templates").iterdir():
        text = re.sub(
            r'lookup "v1" "Secret" (\S+)\.Release\.Namespace (\([^)]*\)+|\S+)',
            r"get \1.Values.global \2",
            file.read_text(),
        )
        assert "lookup" not in text
        file.write_text(text)
    return copy


def test_an_upgrade_keeps_what_was_made(chart_with_secrets: Path) -> None:
    """Otherwise running pods would have other secrets than new ones."""

    def made(there: Object) -> dict[str, Object]:
        files = render({**example("laptop-kind"), "global": there}, chart_with_secrets)
        return {
            item["metadata"]["name"]: item for item in documents(files) if item["kind"] == "Secret"
        }

    first = made({})
    assert len(first) == 7
    assert made(first) == first
    assert made({}) != first
    # The authority's key is kept nowhere, so one missing certificate renews all of them.
    lost = {name: item for name, item in first.items() if name != "tandem-tls-redis"}
    renewed = {name for name, item in made(lost).items() if item != first[name]}
    assert renewed == {"tandem-tls-front-ends", "tandem-tls-internal", "tandem-tls-redis"}
