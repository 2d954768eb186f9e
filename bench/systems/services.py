"""Starts Tandem, vLLM and transformers as servers, and names their targets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.core.model_135m import ModelShape
from bench.core.tandem_config import DTYPE, server_config
from bench.load.client import Target
from bench.load.closed_loop import ServerTarget
from bench.systems.install_peers import find_tcmalloc
from bench.systems.server_process import ServerProcess, free_port, running

_KV_GIB = "2"
_TRANSFORMERS_CACHE = ("--cb-max-memory-percent", "0.15")
VLLM_SMALL_STEPS = ("--max-num-batched-tokens", "256")
_USAGE: Mapping[str, object] = {"stream_options": {"include_usage": True}}


@dataclass(frozen=True, slots=True)
class CliPaths:
    """The paths of the model, the peers' environments, Tandem's command, and logs."""

    model: Path
    peers: Path
    tandem: Path
    logs: Path

    @property
    def gguf(self) -> Path:
        """The weights for llama.cpp."""
        return self.model.with_suffix(".gguf")

    def peer(self, name: str, program: str) -> str:
        """A program of a peer's environment; FileNotFoundError where it is not installed."""
        if not (self.peers / name / ".installed").is_file():
            raise FileNotFoundError(f"{name} is not installed in {self.peers}")
        return str(self.peers / name / "bin" / program)


@dataclass(frozen=True, slots=True)
class Service:
    """A server, and its target; Tandem's server also listens for gRPC."""

    process: ServerProcess
    target: ServerTarget
    grpc_port: int = 0

    @contextlib.contextmanager
    def running(self, logs: Path) -> Iterator[ServerTarget]:
        """Run the server while the block runs; raises NotReady or OSError."""
        with running(self.process, logs / f"{Path(self.process.command[0]).name}.log"):
            yield self.target


def tandem(paths: CliPaths, prefill: int = 1, decode: int = 1, more: str = "") -> Service:
    """`tandem serve` with that many replicas; `more` is YAML: sections of the configuration."""
    config = paths.logs / "tandem.yaml"
    config.write_text(server_config(more))
    port, grpc_port = free_port(), free_port()
    flags = {
        "--config": config,
        "--model": paths.model,
        "--dtype": DTYPE,
        "--prefill-replicas": prefill,
        "--decode-replicas": decode,
        "--port": port,
        "--grpc-port": grpc_port,
        "--dashboard-port": free_port(),
    }
    words = (str(word) for pair in flags.items() for word in pair)
    command = (str(paths.tandem), "serve", *words)
    process = ServerProcess(command, port, "/healthz", ready_line="ready; stop with")
    target = _target(port, paths.model.name, {"ignore_eos": True, **_USAGE})
    return Service(process, target, grpc_port)


def vllm(paths: CliPaths, *extra: str, dtype: str = DTYPE) -> Service:
    """`vllm serve`, with the allocator and the OpenMP of its documentation."""
    port = free_port()
    command = (paths.peer("vllm", "vllm"), "serve", str(paths.model), "--port", str(port))
    options = ("--dtype", dtype, "--host", "127.0.0.1", "--no-enable-log-requests", *extra)
    environment = {
        "LD_PRELOAD": _preloaded(paths.peers / "vllm"),
        "VLLM_CPU_KVCACHE_SPACE": _KV_GIB,
        # By default vLLM binds its threads and keeps one core free for its server, here one of
        # two. Threads bound to both cores are slower: they wait for the one on a shared core.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(os.cpu_count()),
    }
    process = ServerProcess((*command, *options), port, environment=environment, start_s=420)
    return Service(process, _target(port, str(paths.model), {"ignore_eos": True, **_USAGE}))


def transformers(paths: CliPaths) -> Service:
    """`transformers serve` with continuous batching. It knows no `ignore_eos`."""
    port = free_port()
    command = (paths.peer("transformers", "transformers"), "serve", str(paths.model))
    # By default its cache takes most of the memory of the machine.
    options = ("--continuous-batching", "--dtype", DTYPE, "--device", "cpu", *_TRANSFORMERS_CACHE)
    where = ("--host", "127.0.0.1", "--port", str(port))
    return Service(
        ServerProcess((*command, *options, *where), port), _target(port, str(paths.model), {})
    )


def _target(port: int, model: str, extra: Mapping[str, object]) -> ServerTarget:
    return ServerTarget(Target.local(port), model, ModelShape().vocabulary, extra)


def _preloaded(environment: Path) -> str:
    libraries = [find_tcmalloc(environment), environment / "lib" / "libiomp5.so"]
    return ":".join(str(path) for path in libraries if path is not None and path.is_file())
