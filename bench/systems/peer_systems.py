"""The systems that are compared, each as one visit: start it, measure it, end it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.core.engine_plan import Figures, Plan
from bench.core.tandem_config import WIDE
from bench.load.closed_loop import figures
from bench.systems import services
from bench.systems.gguf import write
from bench.systems.services import VLLM_SMALL_STEPS, Places, Service

TANDEM, TANDEM_INSIDE = "tandem", "tandem-in-process"
_PROGRAM_S = 900.0

Visit = Callable[[Places, Plan, str], Figures]


@dataclass(frozen=True, slots=True)
class System:
    """One line of the table. `rival` names the line of Tandem's that stands beside it."""

    title: str
    visit: Visit
    rival: str | None = None


def visit_tandem(places: Places, plan: Plan, name: str) -> Figures:
    """`tandem serve` with one prefill and one decode replica."""
    return _serve(places, plan, name, services.tandem(places, more=WIDE))


def visit_vllm(places: Places, plan: Plan, name: str) -> Figures:
    """`vllm serve` as it comes."""
    return _serve(places, plan, name, services.vllm(places))


def visit_vllm_small_steps(places: Places, plan: Plan, name: str) -> Figures:
    """The same in steps of at most 256 tokens."""
    return _serve(places, plan, name, services.vllm(places, *VLLM_SMALL_STEPS))


def visit_transformers(places: Places, plan: Plan, name: str) -> Figures:
    """`transformers serve` with continuous batching."""
    return _serve(places, plan, name, services.transformers(places))


def visit_llama(places: Places, plan: Plan, name: str) -> Figures:
    """llama.cpp through its C API, in a process of its environment."""
    python = places.peer("llama", "python")
    return _program(python, "bench.systems.llama_cpp", write(places.model, places.gguf), plan, name)


def visit_tandem_inside(places: Places, plan: Plan, name: str) -> Figures:
    """Tandem's engine alone, in a process of its own."""
    return _program(sys.executable, "bench.systems.in_process", places.model, plan, name)


def _serve(places: Places, plan: Plan, name: str, service: Service) -> Figures:
    with service.running(places.logs) as door:
        return asyncio.run(figures(door, plan, name))


def _program(python: str, module: str, model: Path, plan: Plan, name: str) -> Figures:
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
