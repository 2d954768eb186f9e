"""The model's files, and what its replicas take of this machine's memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from cluster.config.schema import TandemConfig
from cluster.doctor.findings import Finding, Severity
from cluster.doctor.gpus import Gpu
from engine.errors import TandemError, UnsupportedModel
from engine.kv.layout import KvLayout, LayerShape
from engine.kv.memory import TORCH_DTYPES, block_bytes
from engine.model_description import ModelDescription, describe
from engine.text.tokenizer import Tokenizer
from engine.weights.stored_tensors import StoredTensor, stored_tensors

_MIB, _GIB = 1 << 20, 1 << 30
# Bound: the share of a device's memory that weights may take, so that KV has the rest.
_MOST_WEIGHTS = 0.8
# A byte holds two numbers of MXFP4, which loading brings to bfloat16.
_MXFP4_BYTES = 4


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """What the replicas on one device want of its `free` bytes: `holders` of them share it."""

    where: str
    free: int
    holders: int

    @classmethod
    def of(cls, config: TandemConfig, gpus: Sequence[Gpu], free_bytes: int) -> DeviceRoom:
        """Of the smallest GPU with as many replicas as come to one, or else of this machine."""
        replicas = config.prefill.replicas + config.decode.replicas
        if gpus:
            smallest = min(gpu.memory for gpu in gpus)
            return cls("the smallest GPU", smallest, -(-replicas // len(gpus)))
        return cls("this machine", free_bytes, replicas)


def look_at_model(config: TandemConfig, gpus: Sequence[Gpu], free_bytes: int) -> Iterator[Finding]:
    """Whether the model can be read, and whether its weights and KV fit where replicas hold them.

    A file that ends early is found by its size.
    """
    try:
        model = describe(config.model)
        tensors = stored_tensors(model.folder)
        if not tensors:
            raise UnsupportedModel(f"{model.folder} has no weights in safetensors files")
    except TandemError as error:
        change = "set model.path (or --model) to a whole model, or copy its files again"
        yield Finding("model", Severity.ERROR, error.message, change)
        return
    size = weight_bytes(tensors.values(), model.dtype)
    parameters = sum(prod(one.shape) for one in tensors.values())
    what = f"{model.name}: {model.architecture}, {parameters / 1e6:,.1f} million parameters"
    yield Finding("model", Severity.OK, f"{what}, {model.dtype}: {size / _MIB:,.0f} MiB of weights")
    yield _tokenizer(model)
    yield _memory(config, model, size, DeviceRoom.of(config, gpus, free_bytes))


def weight_bytes(tensors: Iterable[StoredTensor], dtype: str) -> int:
    """The bytes of the weights once they are loaded: as `dtype`, but FP8 as it is stored."""
    item = TORCH_DTYPES[dtype].itemsize
    items = {"torch.uint8": _MXFP4_BYTES, "torch.float8_e4m3fn": 1}
    return sum(prod(one.shape) * items.get(str(one.dtype), item) for one in tensors)


def layout_of(config: TandemConfig, model: ModelDescription) -> KvLayout:
    """The layout of KV by the model's config; layers of one shape are assumed."""
    text: Any = model.config.get_text_config()
    queries = int(text.num_attention_heads)
    heads = int(getattr(text, "num_key_value_heads", None) or queries)
    size = int(getattr(text, "head_dim", None) or text.hidden_size // queries)
    dtype = model.dtype if config.kv.dtype == "auto" else config.kv.dtype
    layers = (LayerShape(heads, size),) * int(text.num_hidden_layers)
    return KvLayout(layers, config.kv.block_size, dtype, model.identity)


def _tokenizer(model: ModelDescription) -> Finding:
    try:
        tokenizer = Tokenizer.load(str(model.folder))
    except UnsupportedModel as error:
        change = "put the model's tokenizer.json into its folder"
        return Finding("tokenizer", Severity.ERROR, error.message, change)
    return Finding("tokenizer", Severity.OK, f"{tokenizer.vocabulary:,} tokens")


def _memory(
    config: TandemConfig, model: ModelDescription, size: int, device: DeviceRoom
) -> Finding:
    wanted = device.holders * size
    parts = [f"{device.holders} x {size / _MIB:,.0f} MiB of weights"]
    if config.kv.blocks is not None:
        blocks = config.kv.blocks * block_bytes(layout_of(config, model))
        wanted += device.holders * blocks
        parts.append(f"{device.holders} x {blocks / _MIB:,.0f} MiB of KV (kv.blocks)")
    what = f"{' and '.join(parts)}, {device.free / _GIB:.1f} GiB on {device.where}"
    if wanted > device.free:
        change = "fewer replicas, fewer kv.blocks, a smaller dtype, or a smaller model"
        return Finding("memory", Severity.ERROR, what, change)
    if config.kv.blocks is None and wanted > _MOST_WEIGHTS * device.free:
        change = f"little is left for KV of {model.context_tokens} tokens: fewer replicas"
        return Finding("memory", Severity.WARNING, what, change)
    return Finding("memory", Severity.OK, what)
