"""The systems that are compared, each as one visit: start it, measure it, end it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.core.engine_plan import Figures, Measurement
from bench.core.tandem_config import WIDE
from bench.load.closed_loop import figures
from bench.systems import services
from bench.systems.gguf import write
from bench.systems.services import VLLM_SMALL_STEPS, CliPaths, Service

TANDEM, TANDEM_INSIDE = "tandem", "tandem-in-process"
_PROGRAM_S = 900.0

Visit = Callable[[CliPaths, Measurement, str], Figures]


@dataclass(frozen=True, slots=True)
class System:
    """One line of the table. `rival` names the line of Tandem's that is compared with it."""

    title: str
    visit: Visit
    rival: str | None = None


def visit_tandem(paths: CliPaths, plan: Measurement, name: str) -> Figures:
    """`tandem serve` with one prefill and one decode replica."""
    return _serve(paths, plan, name, services.tandem(paths, more=WIDE))


def visit_vllm(paths: CliPaths, plan: Measurement, name: str) -> Figures:
    """`vllm serve` with its defaults."""
    return _serve(paths, plan, name, services.vllm(paths))


def visit_vllm_small_steps(paths: CliPaths, plan: Measurement, name: str) -> Figures:
    """`vllm serve` in steps of at most 256 tokens."""
    return _serve(paths, plan, name, services.vllm(paths, *VLLM_SMALL_STEPS))


def visit_transformers(paths: CliPaths, plan: Measurement, name: str) -> Figures:
    """`transformers serve` with continuous batching."""
    return _serve(paths, plan, name, services.transformers(paths))


def visit_llama(paths: CliPaths, plan: Measurement, name: str) -> Figures:
    """llama.cpp through its C API, in a process of its environment."""
    python = paths.peer("llama", "python")
    return _program(python, "bench.systems.llama_cpp", write(paths.model, paths.gguf), plan, name)


def visit_tandem_inside(paths: CliPaths, plan: Measurement, name: str) -> Figures:
    """Tandem's engine alone, in a process of its own."""
    return _program(sys.executable, "bench.systems.in_process", paths.model, plan, name)


def _serve(paths: CliPaths, plan: Measurement, name: str, service: Service) -> Figures:
    with service.running(paths.logs) as server:
        return asyncio.run(figures(server, plan, name))


def _program(python: str, module: str, model: Path, plan: Measurement, name: str) -> Figures:
    """Run a module of this package that prints figures; RuntimeError where it fails."""
    command = [python, "-m", module, "--model", str(model), "--name", name, plan.write()]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_PROGRAM_S, env=environment
    )
    if done.returncode != 0:
        raise RuntimeError(f"it ended with {done.returncode}: {done.stderr[-600:]}")
    return Figures.read(done.stdout)


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
