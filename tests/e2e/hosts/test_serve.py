"""`tandem serve` on hosts whose Ray was started by hand: it finds its router on another one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys

import pytest
import yaml

from tandem_client import Client
from tests import exactness
from tests.e2e.crowd import crowd
from tests.e2e.hosts.conftest import APPLICATION
from tests.e2e.hosts.ray_hosts import GCS_PORT, POOLS, REDIS_PORT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

READY_S = 120
ENDS_S = 60


@pytest.fixture
def config(cluster, model_folder, tmp_path):
    """What docs/howto/several-hosts-without-kubernetes.md says, for these hosts."""
    shares = {pool: {"resources": {f"tandem_{pool}": 1}} for pool in POOLS}
    sections = APPLICATION | {
        "model": {"path": str(model_folder), "dtype": "float32"},
        "router": {"host": "0.0.0.0"},
        "directory": {"url": f"redis://redis:{REDIS_PORT}/0"},
        "security": {"secret_file": str(cluster.secret_file)},
        "ray": {"address": f"head:{GCS_PORT}", "shares": shares},
    }
    file = tmp_path / "tandem.yaml"
    file.write_text(yaml.safe_dump(sections))
    return file


async def test_tandem_serve_on_a_cluster_of_hosts(cluster, config, cases, model):
    """It takes the application of the tests before it away."""
    assert cluster.ask("/api/serve/applications/", {"applications": []}) is not None
    cluster.until(lambda: cluster.application() == "", 60, "the end of the application")
    head = cluster.host("head")
    command = [sys.executable, "-m", "cluster.cli.main", "serve", "--config", str(config)]
    log = head.folder / "serve.log"
    serving = head.start(*command, log=log.name, env=cluster.environment("head"))
    cluster.until(lambda: "\nready" in log.read_text(), READY_S, "tandem serve")
    address = re.search(r"gRPC +(\S+)", log.read_text())
    assert address and address.group(1) == cluster.grpc
    async with Client(cluster.grpc) as client:
        answers = await crowd(client, cases[:8], 4)
    assert exactness.equal(model, cases[:8], [tokens for tokens, _ in answers])
    (pid,) = [pid for pid, line in head.processes().items() if line == " ".join(command)]
    os.kill(pid, signal.SIGINT)
    assert await asyncio.to_thread(serving.wait, ENDS_S) == 0
    assert "head" in cluster.alive()  # the Ray that it found goes on
