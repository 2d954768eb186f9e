"""A `tandem serve` of two and two replicas with the demo model, its traffic, and its fault."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.core.process_sockets import listeners
from bench.faults.cluster_faults import CHAT, COMPLETIONS, TENANTS, ClusterFault
from bench.faults.slow_process import slowed
from bench.faults.traffic import Traffic
from bench.systems.server_process import ServerProcess, free_port, running
from cluster.client.admin_client import fetch_status
from cluster.tenants.hashed_keys import hash_of
from cluster.tenants.operator_key import VARIABLE


@dataclass(frozen=True, slots=True)
class FaultyCluster:
    """A cluster that serves, and what may happen to it."""

    grpc: str
    http_port: int
    operator_key: str
    traffic: Traffic
    kind: ClusterFault

    @property
    def cause(self) -> str:
        """The fault in words."""
        return self.kind.cause

    def calm(self) -> AbstractAsyncContextManager[None]:
        """The traffic of all tenants, while the block runs."""
        return self.traffic.of(self.kind.calm)

    @asynccontextmanager
    async def fault(self) -> AsyncIterator[str]:
        """The fault, while the block runs; gives the id of the replica that it strikes, or ""."""
        async with contextlib.AsyncExitStack() as stack:
            struck = ""
            if self.kind.stopped:
                replicas = (await fetch_status(self.grpc)).replicas
                victim = min((one for one in replicas if one.role == "prefill"), key=lambda o: o.id)
                pid = min(listeners(int(victim.address.rsplit(":", 1)[1])))
                await stack.enter_async_context(slowed(pid, self.kind.stopped))
                struck = victim.id
            await stack.enter_async_context(self.traffic.of(self.kind.extra))
            yield struck


@contextlib.contextmanager
def served(
    fault: ClusterFault, folder: Path, ports: tuple[int, int] = (0, 0)
) -> Iterator[FaultyCluster]:
    """The cluster of a fault, with files in `folder`; raises NotReady or OSError."""
    keys = {tenant: secrets.token_urlsafe(24) for tenant in TENANTS}
    operator_key = secrets.token_urlsafe(24)
    http_port, grpc_port = (port or free_port() for port in ports)
    _write(fault, folder, keys, operator_key)
    flags = {
        "--config": folder / "tandem.yaml",
        "--port": http_port,
        "--grpc-port": grpc_port,
        "--dashboard-port": free_port(),
        "--prefill-replicas": 2,
        "--decode-replicas": 2,
    }
    words = (str(word) for pair in flags.items() for word in pair)
    command = (sys.executable, "-m", "cluster.cli.main", "serve", *words)
    process = ServerProcess(
        command, http_port, "/healthz", {VARIABLE: operator_key}, ready_line="ready; stop with"
    )
    with running(process, folder / "serve.log"):
        grpc = f"127.0.0.1:{grpc_port}"
        yield FaultyCluster(grpc, http_port, operator_key, Traffic(grpc, http_port, keys), fault)


def configuration(fault: ClusterFault, folder: Path) -> dict[str, object]:
    """The configuration of a fault's cluster; its keys and rows are in `folder`."""
    # So patient that a fault makes first tokens late, where it would else cause refusals.
    patient = {"ttft_budget_ms": 20_000, "itl_budget_ms": 2_000}
    return {
        # A host that is busy with other work loses no replica for it.
        "directory": {"lease_s": 15.0},
        "router": {"api_keys": str(folder / "keys.yaml")},
        "request_log": {"folder": str(folder / "rows")},
        "kv": {"blocks": fault.kv_blocks},
        "endpoints": {CHAT: patient, COMPLETIONS: patient},
    }


def _write(fault: ClusterFault, folder: Path, keys: dict[str, str], operator_key: str) -> None:
    hashed = {
        "tenants": {tenant: [hash_of(key)] for tenant, key in keys.items()},
        "operators": {"operator": [hash_of(operator_key)]},
    }
    (folder / "keys.yaml").write_text(yaml.safe_dump(hashed))
    (folder / "tandem.yaml").write_text(yaml.safe_dump(configuration(fault, folder)))
