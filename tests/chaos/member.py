"""Members of a cluster without Ray, each in a process of its own.

    python -m tests.chaos.member FOLDER

FOLDER has the model. Each line of standard input names a member, as JSON. Each is forked from this
process, which has imported everything, so a member starts within a second. All end with standard
input.

A member connects to `control`, a Unix socket. There it tells its port, that it is ready, and each
state that a request reaches; it answers `load` with what it holds.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import random
import signal
import sys
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from bench.core.event_loop import run
from cluster.config.endpoints import ENDPOINTS, EndpointConfig
from cluster.config.schema import TandemConfig
from cluster.config.security import SecurityConfig
from cluster.discovery.redis_directory import Directory
from cluster.replica import replica as replica_module
from cluster.replica.gc_tuning import settle
from cluster.replica.replica import Replica
from cluster.replica.servers import ReplicaServers
from cluster.router.server import RouterServer
from cluster.telemetry.logging_setup import PACKAGES, configure_logging
from cluster.tenants.hashed_keys import hash_of
from engine.text.tokenizer import Tokenizer
from kv_transfer.links import link_service, receiver_link
from kv_transfer.transports import selection
from tests.chaos.cancels import OPERATOR_KEY

HOST = "127.0.0.1"
_PATIENT = {"ttft_budget_ms": 600_000.0, "itl_budget_ms": 600_000.0}
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
# Lines of the log that say which state a request has reached, and where.
STATES = {
    "request accepted": "queued",
    "request taken over": "taken over",
    "request assigned": "assigned",
    "prefill started": "prefilling",
    "first token sampled": "handing over",
    "first token passed on": "first token",
    "request failed over": "recomputing",
}
_FIELDS = ("request_id", "prefill", "decode")


@dataclass(frozen=True)
class Order:
    """A member to start: the addresses that it dials, and the one under which it is known."""

    role: str
    name: str
    control: str
    redis: str
    announced: str
    folder: str
    transport: str

    def config(self) -> TandemConfig:
        """A small cluster in float32. However slow the machine is, nothing is refused for it."""
        base = TandemConfig()
        folder = Path(self.folder)
        return replace(
            base,
            model=replace(base.model, path=str(folder / "tiny"), name="demo", dtype="float32"),
            kv=replace(base.kv, blocks=600, transport=self.transport),
            prefill=replace(base.prefill, chunk_tokens=128, local_prefill_tokens=24),
            router=replace(base.router, http_port=0, grpc_port=0),
            endpoints={
                name: replace(endpoint, **_PATIENT) for name, endpoint in _endpoints().items()
            },
            directory=replace(base.directory, url=self.redis),
            security=SecurityConfig(secret_file=str(folder / "secret")),
        )


def _endpoints() -> dict[str, EndpointConfig]:
    return {name: replace(one, max_output_tokens=1900) for name, one in ENDPOINTS.items()}


class Control:
    """The line to the test: what is told there is JSON, a line each."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()

    def tell(self, **message: object) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    def tell_from_any_thread(self, **message: object) -> None:
        self._loop.call_soon_threadsafe(lambda: self.tell(**message))

    async def answer(self, load: Any) -> None:
        """Answer until the test ends the line."""
        while await self._reader.readline():
            tasks = Counter(task.get_coro().__qualname__ for task in asyncio.all_tasks())
            self.tell(load=load(), tasks=tasks)


class StateHandler(logging.Handler):
    """Tells the states of requests as they are logged."""

    def __init__(self, control: Control) -> None:
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        if state := STATES.get(record.msg):
            fields = {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
            self._control.tell_from_any_thread(state=state, **fields)


async def _member(order: Order) -> None:
    control = Control(*await asyncio.open_unix_connection(order.control))
    control.tell(name=order.name, pid=os.getpid())
    for name in PACKAGES:
        logging.getLogger(name).addHandler(StateHandler(control))
    config = order.config()
    directory = Directory.of(config)
    if order.role == "router":
        operators = [hash_of(OPERATOR_KEY)]
        router = await RouterServer.start(config, order.name, directory, operators=operators)
        control.tell(ready=router.grpc_address, http=router.http_address)
        settle()
        await control.answer(lambda: router.router.running)
        return

    class Announced(ReplicaServers):
        """Known under the address of a cable that leads to its port."""

        @classmethod
        def bind(cls, *arguments: Any) -> Announced:
            servers = super().bind(*arguments)
            control.tell(port=int(servers.address.rpartition(":")[2]))
            servers.address = order.announced
            return servers

    replica_module.ReplicaServers = Announced  # type: ignore[misc]
    replica = await Replica.start(config, order.role, order.name, HOST, directory)  # type: ignore[arg-type]
    control.tell(ready=replica.address)
    settle()
    await control.answer(lambda: replica.load().used + replica.load().blocks_orphaned)


def _child(order: Order) -> None:
    # What tells processes apart, and what they draw, must not be that of their parent.
    selection.PROCESS = receiver_link.PROCESS = link_service.PROCESS = uuid.uuid4().hex
    random.seed()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    with Path(order.folder, f"{order.name}.log").open("w", buffering=1) as log:
        os.dup2(log.fileno(), 2)
        configure_logging("info", log, order.name)
        run(_member(order))


def main() -> None:
    """Fork a member for each line."""
    torch.set_num_threads(1)
    Tokenizer.load(sys.argv[1])  # imports what it needs, which takes long
    AutoModelForCausalLM.from_pretrained(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries members
    print("ready", flush=True)
    # Without a buffer of this process, which a fork would share.
    while line := _line():
        if os.fork() == 0:
            os.close(0)
            os.dup2(2, 1)
            code = 1
            try:
                _child(Order(**json.loads(line)))
                code = 0
            finally:
                os._exit(code)


def _line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(main())
