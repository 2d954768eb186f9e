"""A real Prometheus on loopback; its tests are skipped where the machine has none."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from bench.systems.server_process import free_port
from tests.eventually import wait_until

PROMETHEUS = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="there is no Prometheus: install it"
)
_START_S, _STOP_S, _ANSWER_S = 60, 60, 60


@dataclass(frozen=True)
class Result:
    """One series of an answer: its labels, and its value now."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """Its HTTP API (https://prometheus.io/docs/prometheus/latest/querying/api/)."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer; AssertionError with Prometheus' reason for an error."""
        answer = self._client.get(f"/api/v1/{path}", params=query)
        assert answer.status_code == 200, f"{query}: {answer.text}"
        return answer.json()["data"]

    def query(self, text: str) -> list[Result]:
        """The series of an expression that have a number."""
        found = self.ask("query", query=text)
        assert found["resultType"] == "vector", text
        results = [Result(one["metric"], float(one["value"][1])) for one in found["result"]]
        return [one for one in results if not math.isnan(one.value)]

    def total(self, text: str) -> float:
        """The sum over all series of an expression; 0 if there are none."""
        return sum(one.value for one in self.query(text))

    def is_ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def prometheus(config: dict[str, Any], folder: Path) -> Iterator[Prometheus]:
    """Start it with that configuration and its data in that folder, wait until it answers."""
    file, log = folder / "prometheus.yml", folder / "prometheus.log"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(PROMETHEUS),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=_ANSWER_S) as client:
            server = Prometheus(client)
            wait_until(lambda: process.poll() is not None or server.is_ready(), _START_S)
            assert process.poll() is None, log.read_text()
            yield server
    finally:
        process.terminate()
        process.wait(_STOP_S)
