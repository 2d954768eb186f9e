"""Another user of the host tries every port, file and process of `tandem serve`.

With API keys that user gets nothing. Without them the front ends serve everybody: requests, the
description of the model and metrics, also those of Ray's pages. No status, no change, no link and
no stop are to be had in either case.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from cluster.api import Tokens
from tandem_client import Client
from tests.e2e import second_user
from tests.e2e.second_user import Targets, Try
from tests.e2e.serving import Serving, serve
from tests.eventually import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can act as a second user"),
]
PROBE_TIMEOUT_S = 120
# Ray's exporter sends every few seconds.
COUNTED_S = 60
SETTINGS = {"max_tokens": 4, "temperature": 0, "timeout_s": 60}
# Ports that tell nothing: they hang up, greet as HTTP/2 does, or answer with an error.
REFUSED = {"closed", "silent", "greeted", "400", "401", "403", "404", "405"}
REFUSED_CALLS = {"UNAUTHENTICATED", "UNIMPLEMENTED", "UNAVAILABLE"}
# Ray's servers log it for each call without a token.
RAYS_LINE = "Authentication required but no authorization header provided"
# What tells the lines of one listener from those of others.
LISTENER = re.compile(r"(?:listener|replica)=\S+")
# Of what may end while it is tried.
ENDED = {"FileNotFoundError", "ProcessLookupError"}


@dataclass
class Open:
    """A server, the folder for its temporary files and its user's home, and a tenant's key."""

    serving: Serving
    folder: Path
    key: str | None


@pytest.fixture
def folder(monkeypatch):
    """A home, and a folder for temporary files, that all users may enter."""
    made = Path(tempfile.mkdtemp(prefix="tdm-", dir="/tmp"))  # a short path, for Ray's sockets
    made.chmod(0o755)
    for name, mode in {"home": 0o755, "tmp": 0o1777}.items():
        (made / name).mkdir()
        (made / name).chmod(mode)
    monkeypatch.setenv("HOME", str(made / "home"))
    monkeypatch.setenv("TMPDIR", str(made / "tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(params=[True, False], ids=["with keys", "without keys"])
def opened(request, folder, model, model_folder, tmp_path, monkeypatch):
    key, config = None, tmp_path / "tandem.yaml"
    config.write_text("{}\n")
    if request.param:
        file = folder / "home" / "keys.yaml"
        config.write_text(f"router: {{api_keys: {file}}}\n")
        command = [sys.executable, "-m", "cluster.cli.main", "keys", "add", "acme"]
        key = subprocess.check_output([*command, "--file", str(file)], text=True).strip()
        monkeypatch.setenv("TANDEM_API_KEY", key)
    model = ("--model", str(model_folder), "--dtype", "float32")
    with serve(*model, "--config", str(config), folder=tmp_path) as serving:
        yield Open(serving, folder, key)


async def test_a_second_user_gets_nothing(opened):
    serving, keyed = opened.serving, opened.key is not None
    targets = _targets(opened)
    _are_complete(targets, opened)
    replicas = wait_until(lambda: _healthy(serving))
    lines, began_s = _lines(opened), time.monotonic()
    tries = _tried(targets)
    refused_s = time.monotonic() - began_s

    front = {serving.grpc, httpx.URL(serving.http).netloc.decode()}
    at_ports = [one for one in tries if one.at in set(targets.ports)]
    assert not [one for one in at_ports if one.at not in front and not _is_closed(one, keyed)]
    _front_ends_are_closed([one for one in at_ports if one.at in front], keyed)
    others = [one for one in tries if one.at not in set(targets.ports)]
    assert not [one for one in others if one.got not in {"PermissionError", *ENDED}]
    private = [one for one in others if Path(one.at).name in {"secret", "auth_token", "redis.sock"}]
    assert {one.got for one in private} == {"PermissionError"}

    # Nothing has changed, it serves, and its log is short.
    assert _kept(wait_until(lambda: _healthy(serving))) == _kept(replicas)
    async with Client(serving.grpc, api_key=opened.key) as client:
        events = [event async for event in client.generate([1] * 20, **SETTINGS)]
    assert any(isinstance(event, Tokens) for event in events)
    for path, log in _lines(opened).items():
        new = [line for line in log[len(lines.get(path, [])) :] if RAYS_LINE not in line]
        # A line a second of each listener, and the terminal has those of all replicas.
        of_each = Counter(tuple(LISTENER.findall(line)) for line in new)
        assert all(count <= refused_s + 2 for count in of_each.values()), new
    _are_counted(opened)


def _targets(opened: Open) -> Targets:
    """What a search as root finds of the server."""
    serving = opened.serving
    pids = sorted({serving.process.pid, *serving.below()})
    files = [str(path) for path in opened.folder.rglob("*") if _is_file(path)]
    for pid in pids:
        files += [f"/proc/{pid}/{name}" for name in ("environ", "mem", "maps", "fd/0")]
        with suppress(OSError):
            links = {link: str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
            shared = ("/memfd:", "/dev/shm/")
            files += [str(link) for link, file in links.items() if file.startswith(shared)]
    return Targets(sorted(serving.ports()), sorted(serving.unix_sockets()), files, pids)


def _are_complete(targets: Targets, opened: Open) -> None:
    """The search has found what it must, so that no refusal is one of nothing."""
    names = {Path(path).name for path in targets.files}
    assert names >= {"secret", "auth_token", "gcs_server.out"}
    assert any("/.tandem/run/" in path for path in targets.files)
    assert any(re.fullmatch(r"/proc/\d+/fd/\d+", path) for path in targets.files)
    assert {"redis.sock", "raylet"} <= {Path(path).name for path in targets.sockets}
    addresses = {str(one["address"]) for one in opened.serving.replicas()}
    assert {*addresses, opened.serving.grpc} <= set(targets.ports)
    # All users can read the command lines.
    hidden = [path for path in targets.files if Path(path).name in {"secret", "auth_token"}]
    hidden += [path for path in targets.files if "/.tandem/run/" in path]
    secrets = [Path(path).read_text().strip() for path in hidden]
    for pid in targets.processes:
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_text()
            assert not any(secret in line for secret in secrets)


def _tried(targets: Targets) -> list[Try]:
    command = [sys.executable, "-m", second_user.__name__]
    text = json.dumps(vars(targets))
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return [Try(**one) for one in json.loads(done.stdout)]


def _is_closed(one: Try, keyed: bool) -> bool:
    """Whether a port that is no front end has refused. Without keys, Ray's metrics are open."""
    if one.got in REFUSED | REFUSED_CALLS:
        return True
    if one.what == "GET /" and one.text.startswith("<!doctype html>"):
        return True  # the page of Ray's dashboard, which asks for the token
    metrics = one.got == "200" and one.what.startswith("GET ") and one.text.startswith("# HELP")
    return not keyed and (metrics or one.text.startswith("<!DOCTYPE HTML>"))


def _front_ends_are_closed(tries: list[Try], keyed: bool) -> None:
    told = {one.what: one for one in tries if one.got not in REFUSED | REFUSED_CALLS}
    allowed = {"GET /healthz"}
    if not keyed:
        allowed |= {"GET /metrics", "GET /v1/models", "POST /v1/completions"}
        allowed |= {f"tandem.v1.Inference/{call}" for call in ("Generate", "GetModel")}
    assert set(told) == allowed
    assert told["GET /healthz"].text == '{"status":"ok"}'
    # The HTTP port does not speak gRPC.
    operated = [one.got for one in tries if "Admin/" in one.what and one.got != "UNAVAILABLE"]
    assert operated == ["UNAUTHENTICATED"] * 4
    if keyed:
        http = {one.what: one.got for one in tries if one.got.isdigit()}
        asked = ("GET /metrics", "GET /v1/models", "POST /v1/completions")
        assert {http[what] for what in asked} == {"401"}


def _healthy(serving: Serving) -> list[dict[str, object]]:
    """The replicas once all are healthy: on a busy machine one may be silent for a moment."""
    found = serving.replicas()
    return found if all(one["healthy"] for one in found) else []


def _kept(replicas: list[dict[str, object]]) -> list[tuple[object, ...]]:
    """What no stranger may change."""
    return sorted((one["id"], one["role"], one["config"], one["healthy"]) for one in replicas)


def _lines(opened: Open) -> dict[str, list[str]]:
    """Each log of the server and of its replicas."""
    logs = [opened.serving.log, *opened.folder.glob("tmp/tandem-0/ray/session_2*/logs/worker-*")]
    return {str(path): path.read_text(errors="replace").splitlines() for path in logs}


def _are_counted(opened: Open) -> None:
    """The front end counts in the router. Replicas export through Ray, where keys close it."""
    (file,) = (opened.folder / "home" / ".tandem" / "run").iterdir()
    headers = {"Authorization": f"Bearer {file.read_text().strip()}"}
    url = f"{opened.serving.http.removesuffix('/v1')}/metrics"
    page = httpx.get(url, headers=headers, timeout=60).text
    assert _refused(page, "http")
    if opened.key is None:
        wait_until(lambda: _refused(_pages(opened.serving), "internal"), COUNTED_S, 1.0)


def _pages(serving: Serving) -> str:
    """All pages of metrics that ask for no key."""
    pages = []
    for address in serving.ports():
        with suppress(httpx.HTTPError):
            pages.append(httpx.get(f"http://{address}/metrics", timeout=5).text)
    return "\n".join(pages)


def _refused(page: str, listener: str) -> bool:
    rows = re.findall(r"tandem_refused_connections_total\{(.*)\} (\S+)", page)
    return any(f'listener="{listener}"' in labels and float(value) > 0 for labels, value in rows)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
