"""A Ray cluster on several hosts: what the chart renders, started by hand in place of KubeRay.

host redis     the Redis of directory.url and of Ray's fault tolerance
host head      Ray's head, and Serve's controller; no replicas
host router    each is a node that offers the custom resource of its pool, as the pods of
host prefill   the pool do
host decode
host spare     no node, until a test starts one there, of any pool
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from cluster.client.admin_client import fetch_status
from cluster.deploy.embedded_redis import find_server
from engine.errors import Unavailable
from protos.router_pb2 import ReplicaStatus, StatusResponse
from tandem_client.router_address import RouterAddress
from tests.e2e.hosts import slow_proxy
from tests.e2e.hosts.namespaces import Host, Switch
from tests.eventually import eventually, wait_until
from tests.helm.chart import ROOT, Object, cluster_spec, groups, objects, one

POOLS = ("router", "prefill", "decode")
SPARE = "spare"
NAMES = ("redis", "head", *POOLS, SPARE)
REDIS_PORT = 6380  # of the proxy before it, which can be made slow
_REDIS_OWN_PORT = 6379
GCS_PORT = 6379
DASHBOARD_PORT = 8265
HOOK_LOG = "hook.log"
START_TIMEOUT_S = 120
# What KubeRay gives the pods of a RayService with fault tolerance.
_KUBERAY = {
    "RAY_external_storage_namespace": "tandem-hosts",
    "RAY_timeout_ms_task_wait_for_death_info": "0",
    "RAY_gcs_server_request_timeout_seconds": "5",
    "RAY_SERVE_KV_TIMEOUT_S": "5",
}
_KUBERAY_WORKER = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}


class RayHosts:
    """The hosts, and Ray on them; `deploy` puts the application there.

    `nodes` are the processes that stay as long as the host's node does. `authority` is the file of
    the authority of the front ends, where they have TLS.
    """

    chart_pools: Mapping[str, Object] = MappingProxyType({})
    workers: tuple[str, ...] = POOLS

    def __init__(self, switch: Switch, folder: Path, application: Mapping[str, Any]) -> None:
        self.switch = switch
        self._folder = folder
        self._chart = objects(
            {
                "application": dict(application),
                "pools": dict(self.chart_pools),
                "redis": {"url": f"redis://redis:{REDIS_PORT}/0", "allowWithoutPassword": True},
                "security": {"allowWithoutKeys": True},
                "tls": {"enabled": False},
                "ray": {"faultTolerance": {"enabled": True}},
                "replacementSeconds": 180,
                "drainSeconds": 60,
            }
        )
        self._token = secrets.token_hex(32)
        self._operator_key = secrets.token_hex(32)
        self._late = folder / "late"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.authority: str | None = None
        self._spare_pool = "decode"
        for name, text in one(self._chart, "ConfigMap", "tandem-config")["data"].items():
            own = text.replace("/etc/tandem/", f"{folder}/")
            (folder / name).write_text(own.replace("/etc/tandem-secrets/", f"{folder}/"))
        self.secret_file = folder / "cluster" / "secret"
        self.secret_file.parent.mkdir(exist_ok=True)
        self.secret_file.write_text(secrets.token_hex(32))

    def start(self) -> None:
        """Start Redis, the head and the nodes of the pools, and wait until all are there."""
        self.start_redis()
        self.start_head()
        for name in self.workers:
            self.start_node(name)
        self.until(lambda: set(self.alive()) == {"head", *self.workers}, START_TIMEOUT_S, "nodes")

    def start_redis(self) -> None:
        """A redis-server, and a proxy by which everybody on the switch reaches it."""
        host = self.host("redis")
        settings = {"port": str(_REDIS_OWN_PORT), "dir": str(host.folder)}
        settings |= {"save": "", "appendonly": "no"}
        arguments = [part for key, value in settings.items() for part in (f"--{key}", value)]
        host.start(str(find_server()), *arguments, log="redis.log")
        self.slow_redis(0.0)
        ports = (str(REDIS_PORT), str(_REDIS_OWN_PORT))
        host.start(sys.executable, slow_proxy.__file__, *ports, str(self._late), log="proxy.log")

    def slow_redis(self, late_s: float) -> None:
        """From now on everything to and from Redis comes later by so much, each way."""
        written = self._late.with_suffix(".new")
        written.write_text(str(late_s))
        written.replace(self._late)

    def start_head(self) -> None:
        """Start Ray's head, or start it again: with what is in Redis, it goes on."""
        spec = cluster_spec(self._chart)
        options = spec["gcsFaultToleranceOptions"]
        env = self.environment("head")
        env |= {"RAY_REDIS_ADDRESS": options["redisAddress"]}
        where = ("--head", f"--port={GCS_PORT}")
        self._ray("head", spec["headGroupSpec"], where, env)

    def start_spare(self, pool: str) -> None:
        """Start a second node of a pool."""
        self._spare_pool = pool
        self.start_node(SPARE)

    def start_node(self, name: str) -> None:
        """Start, or start again, the node of a host that replicas go to."""
        env = self.environment(name) | _KUBERAY_WORKER
        self._ray(name, self._group(name), (f"--address=head:{GCS_PORT}",), env)

    def start_hook(self, name: str) -> subprocess.Popen[bytes]:
        """Start the preStop hook in that host, as a kubelet does in a pod that is to end."""
        (container,) = self._group(name)["template"]["spec"]["containers"]
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        words = [word.replace("/etc/tandem/", f"{self._folder}/") for word in command]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = self.environment(name) | {"RAY_ADDRESS": f"head:{GCS_PORT}", "PATH": path}
        return self.host(name).start(*words, log=HOOK_LOG, env=env)

    def end_node(self, name: str) -> None:
        """End what is left of a host's node, and forget it, so that `keep` does not start it again.

        When Ray has ended a drained node's raylet, `ray start --block` and others stay: it takes
        an exit without an error for no exit.
        """
        self.nodes.pop(name, None)
        self.host(name).kill_all()

    def _group(self, name: str) -> Object:
        return groups(self._chart)[self._spare_pool if name == SPARE else name]

    def deploy(self, overrides: Mapping[str, object] = MappingProxyType({})) -> None:
        """Give Serve the application, as KubeRay does, and wait until it runs."""
        config = yaml.safe_load((self._folder / "serve.yaml").read_text())
        config["applications"][0]["args"]["overrides"] |= overrides
        self.until(lambda: self.ask("/api/serve/applications/", config) is not None, 60, "Serve")
        self.until(lambda: self.application() == "RUNNING", START_TIMEOUT_S, "the application")

    def application(self) -> str:
        """Serve's word for how the application is; empty where nobody answers."""
        answer = self.ask("/api/serve/applications/") or {}
        return str(answer.get("applications", {}).get("tandem", {}).get("status", ""))

    def keep(self) -> None:
        """Start nodes that have ended again, as Kubernetes does with a container."""
        for name in [name for name, node in self.nodes.items() if node.poll() is not None]:
            if name == "head":
                self.start_head()
            else:
                self.start_node(name)

    def restored(self) -> bool:
        """Whether Ray counts all nodes as alive, and Serve finds the application healthy."""
        self.keep()
        return self.application() == "RUNNING" and self.alive() == sorted(["head", *self.workers])

    def alive(self) -> list[str]:
        """The hosts whose nodes Ray counts as alive."""
        nodes = (self.ask("/nodes?view=summary") or {}).get("data", {}).get("summary", [])
        names = {host.address: name for name, host in self.switch.hosts.items()}
        raylets = [node.get("raylet", {}) for node in nodes]
        return sorted(
            names[raylet["nodeManagerAddress"]]
            for raylet in raylets
            if raylet.get("state") == "ALIVE"
        )

    def ask(self, path: str, body: object = None) -> dict[str, Any] | None:
        """Ray's dashboard on the head; None where it does not answer."""
        request = urllib.request.Request(
            f"http://{self.host('head').address}:{DASHBOARD_PORT}{path}",
            method="GET" if body is None else "PUT",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    @property
    def grpc(self) -> str:
        """The router's address for gRPC."""
        return f"{self.host('router').address}:50051"

    async def replicas(self) -> list[ReplicaStatus]:
        """Who the router knows, and how they are."""
        return list((await self._status()).replicas)

    async def whole(self, timeout_s: float = 120) -> float:
        """Wait until the router has a healthy replica of each pool; returns how long it took."""
        return await self._eventually(self._whole, timeout_s, "a whole cluster")

    async def renewed(self, before: str, timeout_s: float = 120) -> float:
        """Wait until the cluster is whole with another replica in the place of `before`."""

        async def is_renewed() -> bool:
            self.keep()
            return before not in {one.id for one in await self.replicas()} and await self._whole()

        return await self._eventually(is_renewed, timeout_s, f"another one than {before}")

    async def idle(self, timeout_s: float = 60) -> float:
        """Wait until no replica holds anything: no request, and no block but cached ones."""

        async def is_idle() -> bool:
            pools = [entry for entry in await self.replicas() if entry.role != "router"]
            return not any(entry.waiting or entry.running or _in_use(entry) for entry in pools)

        return await self._eventually(is_idle, timeout_s, f"idle pools: {await self.replicas()}")

    def host(self, name: str) -> Host:
        """One of the hosts."""
        return self.switch[name]

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> float:
        """Wait for a condition; returns how long it took. Fails with the ends of the logs."""
        began_s = time.monotonic()
        try:
            wait_until(condition, timeout_s, poll_s=0.25)
        except TimeoutError:
            raise AssertionError(f"waited {timeout_s} s for {what}\n{self.logs()}") from None
        return time.monotonic() - began_s

    def logs(self) -> str:
        """The last lines of what the hosts printed, and of Serve's own logs."""
        files = sorted(self._folder.glob("*/*.log"))
        files += sorted(self._folder.glob("*/ray/session_2*/logs/serve/*.log"))
        ends = {file: file.read_text(errors="replace")[-3000:] for file in files}
        return "\n".join(f"== {file}\n{end}" for file, end in ends.items())

    async def _status(self) -> StatusResponse:
        return await fetch_status(RouterAddress.at(self.grpc, self.authority), self._operator_key)

    async def _whole(self) -> bool:
        try:
            status = await self._status()
        except Unavailable:
            return False
        return not status.missing and all(entry.healthy for entry in status.replicas)

    async def _eventually(
        self, condition: Callable[[], Awaitable[bool]], timeout_s: float, what: str
    ) -> float:
        began_s = time.monotonic()
        try:
            await eventually(condition, timeout_s, poll_s=0.25)
        except TimeoutError:
            raise AssertionError(f"waited {timeout_s} s for {what}\n{self.logs()}") from None
        return time.monotonic() - began_s

    def _ray(self, name: str, group: Object, where: tuple[str, ...], env: dict[str, str]) -> None:
        parameters = {key: value.strip("'") for key, value in group["rayStartParams"].items()}
        options = [f"--{key}={value}" for key, value in parameters.items()]
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", *where]
        address = f"--node-ip-address={self.host(name).address}"
        self.nodes[name] = self.host(name).start(
            *command, address, *options, log="ray.log", env=env
        )

    def environment(self, name: str) -> dict[str, str]:
        """What Ray's processes on that host find in their environment."""
        spec = cluster_spec(self._chart)
        group = spec["headGroupSpec"] if name == "head" else self._group(name)
        container = group["template"]["spec"]["containers"][0]
        own = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
        health = self.host(name).folder / "health"
        health.mkdir(exist_ok=True)
        own |= {"TANDEM_HEALTH_DIR": str(health), "HOME": os.environ.get("HOME", "/tmp")}
        paths = {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token}
        return own | paths | _KUBERAY | {"TANDEM_OPERATOR_KEY": self._operator_key}


def _in_use(entry: ReplicaStatus) -> int:
    blocks = entry.blocks
    return blocks.used + blocks.leased + blocks.quarantined + blocks.orphaned
