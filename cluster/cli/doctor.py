"""`tandem doctor`: looks at this machine, the configuration and the model before a cluster does."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cluster.doctor.findings import (
    Finding,
    Severity,
    as_json,
    as_text,
    exit_code,
    looked_at,
)

if TYPE_CHECKING:
    from cluster.doctor.gpus import Gpu
    from cluster.doctor.machine import Machine


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `tandem doctor`."""
    parser.add_argument("--config", metavar="FILE", help="the YAML configuration")
    parser.add_argument("--model", metavar="PATH", help="folder of the model (default: demo)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def doctor(options: argparse.Namespace) -> int:
    """Print each finding as it is made; 0 where all is well, 1 with a warning, 2 with an error."""
    findings = []
    for finding in _findings(options):
        findings.append(finding)
        if not options.json:
            print(as_text([finding]), flush=True)
    if options.json:
        print(as_json(findings))
    return exit_code(findings)


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    from cluster.config.schema import load_config
    from cluster.doctor import kubernetes, machine, model_files, network, placement
    from engine.errors import ConfigError

    here = machine.Machine()
    yield from looked_at("processor", _processors, here)
    yield from looked_at("scheduling", machine.look_at_scheduling, here)
    yield from looked_at("clock", machine.look_at_clock)
    yield from looked_at("open files", machine.look_at_files)
    yield from looked_at("shared memory", machine.look_at_shared_memory)
    devices: list[Gpu] = []
    yield from looked_at("GPU", _gpus, devices)
    yield from looked_at("locked memory", machine.look_at_locked_memory, len(devices))
    try:
        overrides = {} if options.model is None else {"model.path": options.model}
        config = load_config(options.config, overrides)
    except ConfigError as error:
        for line in error.message.splitlines():
            change = "docs/reference/configuration.md has every key"
            yield Finding("configuration", Severity.ERROR, line, change)
        return
    yield Finding("configuration", Severity.OK, options.config or "the defaults")
    yield from looked_at("ports", network.look_at_ports, config)
    yield from looked_at("ray.shares", placement.look_at_placement, config, len(devices))
    yield from looked_at("Redis", network.look_at_redis, config)
    yield from looked_at("model", lambda: model_files.look_at_model(config, devices, _free_bytes()))
    yield from looked_at("Kubernetes", kubernetes.look_at_kubernetes)


def _processors(here: Machine) -> Iterator[Finding]:
    from cluster.doctor.machine import look_at_processors
    from engine.cpu.core_sharing import usable_cores

    yield from look_at_processors(here, usable_cores())


def _gpus(found: list[Gpu]) -> Iterator[Finding]:
    """Look at the GPUs, and add them to `found`."""
    from cluster.doctor.gpus import gpus_here, look_at_gpus, nccl_here

    found += gpus_here()
    yield from look_at_gpus(found, nccl_here())


def _free_bytes() -> int:
    import torch

    from engine.free_memory import free_bytes

    return free_bytes(torch.device("cpu"))
