"""The scales of keys and values that a checkpoint stores, folded into the weights around them.

FP8 blocks then hold keys divided by `k_scale` and values divided by `v_scale`. The product of
queries and keys gets its scale back by the queries, and the values by the output projection. So no
kernel knows of scales. They are rounded up to powers of two, so that weights in bfloat16 and
float32 stay exact. E4M3 has the same precision under any scale, and the rounding leaves unused the
upper half of its range at most.

The names are those that vLLM reads (model_executor/model_loader/weight_utils.py).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch

from engine.fp8.module import Fp8Linear
from engine.model_description import ModelDescription
from engine.weights.stored_tensors import StoredTensor, TensorReader, stored_tensors

log = logging.getLogger(__name__)

# Families in which nothing but a projection, a norm without an offset and a rotation are between
# the weights and the stored keys and values.
_FAMILIES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "MixtralForCausalLM",
    "Qwen3MoeForCausalLM",
    "GptOssForCausalLM",
)
# The names of one scale, the field's word first.
_KEY = ("k_scale", "k_proj.k_scale", "k_proj.output_scale", "kv_scale")
_VALUE = ("v_scale", "v_proj.v_scale", "v_proj.output_scale", "kv_scale")
_PREFIXES = ("model.layers.{}.self_attn.", "model.layers.{}.self_attn.attn.")


def fold_kv_scales(description: ModelDescription, model: Any) -> bool:
    """Fold what the checkpoint stores into the weights of the module; whether there was any.

    Both replicas of a link must have folded the same scales (see KvLayout.model_identity).
    """
    stored, reader = stored_tensors(description.folder), TensorReader(torch.device("cpu"))
    layers = model.model.layers if description.architecture in _FAMILIES else ()
    scaled = 0
    for index, layer in enumerate(layers):
        key, value = (_scale(stored, reader, index, names) for names in (_KEY, _VALUE))
        if key is not None or value is not None:
            _fold(layer.self_attn, key or 1.0, value or 1.0)
            scaled += 1
    if scaled:
        log.info("scales of the KV of %d layers are used", scaled)
    elif ignored := next((name for name in stored if _is_kv_scale(name)), None):
        log.warning("scales of the KV are stored and not used: %s", ignored)
    return scaled > 0


def _scale(
    stored: Mapping[str, StoredTensor], reader: TensorReader, layer: int, names: tuple[str, ...]
) -> float | None:
    """The power of two that is at least the layer's scale; None without a single positive one."""
    for prefix in _PREFIXES:
        for name in names:
            one = stored.get(prefix.format(layer) + name)
            if one is None or math.prod(one.shape) != 1:
                continue
            number = torch.empty(one.shape)
            reader.read([(one, number)])
            scale = number.item()
            if 0 < scale < math.inf:
                return 2.0 ** math.ceil(math.log2(scale))
    return None


def _is_kv_scale(name: str) -> bool:
    return ".self_attn." in name and name.endswith((*_KEY, *_VALUE))


@torch.no_grad()
def _fold(attention: Any, key: float, value: float) -> None:
    if getattr(attention, "k_norm", None) is None:
        _multiply(attention.q_proj, key)
        _multiply(attention.k_proj, 1 / key)
    else:
        # A norm undoes what is done before it.
        attention.q_norm.weight.mul_(key)
        attention.k_norm.weight.mul_(1 / key)
    _multiply(attention.v_proj, 1 / value)
    out = attention.o_proj
    if isinstance(out, Fp8Linear):
        out.multiply(value)
        out.expect_inputs(1 / value)
    else:
        out.weight.mul_(value)


def _multiply(linear: Any, factor: float) -> None:
    """Multiply what a linear layer gives."""
    if isinstance(linear, Fp8Linear):
        linear.multiply(factor)
    else:
        linear.weight.mul_(factor)
    if linear.bias is not None:
        linear.bias.mul_(factor)
