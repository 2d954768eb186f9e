"""The model's files, and what its replicas take of this machine's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from cluster.config.schema import TandemConfig
from cluster.doctor.findings import Finding, Severity
from cluster.doctor.gpus import Gpu
from engine.errors import TandemError
from engine.model_description import ModelDescription, describe
from engine.safetensors_header import read_header

_MIB, _GIB = 1 << 20, 1 << 30
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Bound: the share of a device's memory that weights may take, so that KV has the rest.
_MOST_WEIGHTS = 0.8


def look_at_model(config: TandemConfig, gpus: Sequence[Gpu], free_bytes: int) -> Iterator[Finding]:
    """Whether the model can be read, and whether its weights fit as often as replicas hold them."""
    try:
        model = describe(config.model)
        parameters = stored_parameters(model.folder)
    except TandemError as error:
        yield Finding("model", Severity.ERROR, error.message, "set model.path (or --model)")
        return
    size = parameters * _ITEM_BYTES.get(model.dtype, 4)
    what = f"{model.name}: {model.architecture}, {parameters / 1e6:,.1f} million parameters"
    if not parameters:
        change = "its weights must be safetensors files"
        yield Finding("model", Severity.ERROR, f"{what} in {model.folder}", change)
        return
    yield Finding("model", Severity.OK, f"{what}, {model.dtype}: {size / _MIB:,.0f} MiB of weights")
    yield from _memory(config, model, size, gpus, free_bytes)


def stored_parameters(folder: Path) -> int:
    """The numbers in the safetensors files of a folder; UnsupportedModel if a file is bad."""
    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            _, tensors, _ = read_header(file, path)
        count += sum(prod(one["shape"]) for one in tensors.values())
    return count


def _memory(
    config: TandemConfig,
    model: ModelDescription,
    size: int,
    gpus: Sequence[Gpu],
    free_bytes: int,
) -> Iterator[Finding]:
    replicas = config.prefill.replicas + config.decode.replicas
    if gpus:
        holders = -(-replicas // len(gpus))
        free, where = min(gpu.memory for gpu in gpus), "the smallest GPU"
    else:
        holders, free, where = replicas, free_bytes, "this machine"
    wanted = holders * size
    what = f"{holders} x {size / _MIB:,.0f} MiB of weights, {free / _GIB:.1f} GiB on {where}"
    if wanted > free:
        change = "fewer replicas, a smaller dtype, or a smaller model"
        yield Finding("memory", Severity.ERROR, what, change)
    elif wanted > _MOST_WEIGHTS * free:
        change = f"little is left for KV of {model.context_tokens} tokens: fewer replicas"
        yield Finding("memory", Severity.WARNING, what, change)
    else:
        yield Finding("memory", Severity.OK, what)
