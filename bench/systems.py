"""The systems that are compared, each as one visit: start it, measure it, end it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.gguf import write
from bench.install_peers import find_tcmalloc
from bench.over_http import Door, figures
from bench.plan import Figures, Plan
from bench.servers import Server, free_port, running
from bench.setting import DTYPE, server_config
from bench.shape import Shape

TANDEM, TANDEM_INSIDE = "tandem", "tandem-in-process"
_PROGRAM_S = 900.0
_KV_GIB = "2"
_TRANSFORMERS_CACHE = ("--cb-max-memory-percent", "0.15")
_VLLM_SMALL_STEPS = ("--max-num-batched-tokens", "256")


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are: the model, the peers' environments, Tandem's command, logs."""

    model: Path
    peers: Path
    tandem: Path
    logs: Path

    @property
    def gguf(self) -> Path:
        """The same weights for llama.cpp."""
        return self.model.with_suffix(".gguf")

    def peer(self, name: str, program: str) -> str:
        """A program of a peer's environment; FileNotFoundError where it is not installed."""
        if not (self.peers / name / ".installed").is_file():
            raise FileNotFoundError(f"{name} is not installed in {self.peers}")
        return str(self.peers / name / "bin" / program)


Visit = Callable[[Places, Plan, str], Figures]


@dataclass(frozen=True, slots=True)
class System:
    """One line of the table. `rival` names the line of Tandem's that stands beside it."""

    title: str
    visit: Visit
    rival: str | None = None


def _serve(places: Places, plan: Plan, name: str, server: Server, door: Door) -> Figures:
    log = places.logs / f"{Path(server.command[0]).name}.log"
    with running(server, log):
        return asyncio.run(figures(door, plan, name))


def visit_tandem(places: Places, plan: Plan, name: str) -> Figures:
    """`tandem serve` with one prefill and one decode replica."""
    config = places.logs / "tandem.yaml"
    config.write_text(server_config())
    port = free_port()
    flags = {
        "--config": config,
        "--model": places.model,
        "--dtype": DTYPE,
        "--prefill-replicas": 1,
        "--decode-replicas": 1,
        "--port": port,
        "--grpc-port": free_port(),
        "--dashboard-port": free_port(),
    }
    words = (str(word) for pair in flags.items() for word in pair)
    command = (str(places.tandem), "serve", *words)
    server = Server(command, port, "/healthz", ready_line="ready; stop with")
    door = Door(port, places.model.name, Shape().vocabulary, {"ignore_eos": True, **_USAGE})
    return _serve(places, plan, name, server, door)


def visit_vllm(places: Places, plan: Plan, name: str, *extra: str) -> Figures:
    """`vllm serve`, with the allocator and the OpenMP that its documentation asks for."""
    port = free_port()
    command = (places.peer("vllm", "vllm"), "serve", str(places.model), "--port", str(port))
    options = ("--dtype", DTYPE, "--host", "127.0.0.1", "--no-enable-log-requests", *extra)
    environment = {
        "LD_PRELOAD": _preloaded(places.peers / "vllm"),
        "VLLM_CPU_KVCACHE_SPACE": _KV_GIB,
        # By default it binds its threads and keeps a core free for its server, one of two here;
        # bound to both they lose more, as they wait for the one that shares its core.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(os.cpu_count()),
    }
    server = Server((*command, *options), port, environment=environment, start_s=420)
    extra_body = {"ignore_eos": True, **_USAGE}
    door = Door(port, str(places.model), Shape().vocabulary, extra_body)
    return _serve(places, plan, name, server, door)


def visit_vllm_small_steps(places: Places, plan: Plan, name: str) -> Figures:
    """The same in steps of at most 256 tokens."""
    return visit_vllm(places, plan, name, *_VLLM_SMALL_STEPS)


def visit_transformers(places: Places, plan: Plan, name: str) -> Figures:
    """`transformers serve` with continuous batching. It knows no `ignore_eos`."""
    port = free_port()
    command = (places.peer("transformers", "transformers"), "serve", str(places.model))
    # By default its cache takes most of the memory of the machine.
    options = ("--continuous-batching", "--dtype", DTYPE, "--device", "cpu", *_TRANSFORMERS_CACHE)
    where = ("--host", "127.0.0.1", "--port", str(port))
    server = Server((*command, *options, *where), port)
    return _serve(places, plan, name, server, Door(port, str(places.model), Shape().vocabulary))


def visit_llama(places: Places, plan: Plan, name: str) -> Figures:
    """llama.cpp through its C API, in a process of its environment."""
    python = places.peer("llama", "python")
    return _program(python, "bench.llama_side", write(places.model, places.gguf), plan, name)


def visit_tandem_inside(places: Places, plan: Plan, name: str) -> Figures:
    """Tandem's engine alone, in a process of its own."""
    return _program(sys.executable, "bench.in_process", places.model, plan, name)


def _program(python: str, module: str, model: Path, plan: Plan, name: str) -> Figures:
    """Run a module of this package that prints figures; RuntimeError where it fails."""
    command = [python, "-m", module, "--model", str(model), "--name", name, plan.write()]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_PROGRAM_S, env=environment
    )
    if done.returncode != 0:
        raise RuntimeError(f"it ended with {done.returncode}: {done.stderr[-600:]}")
    return Figures.read(done.stdout)


def _preloaded(environment: Path) -> str:
    libraries = [find_tcmalloc(environment), environment / "lib" / "libiomp5.so"]
    return ":".join(str(path) for path in libraries if path is not None and path.is_file())


_USAGE: Mapping[str, object] = {"stream_options": {"include_usage": True}}

SYSTEMS: dict[str, System] = {
    TANDEM: System("Tandem, HTTP, 1 + 1 replicas", visit_tandem),
    "vllm": System("vLLM 0.32 (CPU build, patched install), HTTP", visit_vllm, TANDEM),
    "vllm-256": System("the same, steps of 256 tokens", visit_vllm_small_steps, TANDEM),
    "transformers": System(
        "transformers 5.23 serve, continuous batching, HTTP", visit_transformers, TANDEM
    ),
    TANDEM_INSIDE: System("Tandem's engine, in process", visit_tandem_inside),
    "llama": System("llama.cpp, in process", visit_llama, TANDEM_INSIDE),
}
