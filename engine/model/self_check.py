"""Checks of a module before it serves: its KV shape, and logits to compare with."""

from __future__ import annotations

from typing import Any

import torch

from engine.config import KvDtype
from engine.errors import UnsupportedModel
from engine.fp8.module import Fp8Linear
from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model import attention_hf as attention
from engine.model.loading import LOADING
from engine.model.packed_batch import pack
from engine.model.runner import Runner, run_module, whole
from engine.model_description import ModelDescription
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence, Span

# A bound: the tokens of the check.
_CHECK_TOKENS = 24
# Numerics: the largest logit difference from eager attention, relative to the largest logit. In FP8
# a number of a layer is rounded to its other neighbour now and then, which moved logits of random
# weights by up to 0.2. Products with FP8 weights have an exact check, engine/fp8/product_check.py.
_CHECK_TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-1, "float16": 5e-2, "fp8_e4m3": 3e-1}
# Ends the identity of models whose weights stay FP8, as their KV differs from other devices' KV.
_KEEPS_FP8 = "-fp8"
# In the identity where KV is divided by stored scales (engine/fp8/kv_scales.py).
_SCALED_KV = "-scaled-kv"


def probe_layout(
    description: ModelDescription,
    model: Any,
    block_size: int,
    kv_dtype: KvDtype = "auto",
    *,
    scaled_kv: bool = False,
) -> KvLayout:
    """The KV layout of a module, found by running one token through it.

    FP8 weights that stay FP8 give other keys and values than the same weights brought back.
    """
    probe = attention.ShapeProbe()
    token = torch.zeros(1, dtype=torch.long, device=next(model.parameters()).device)
    with LOADING, torch.inference_mode():
        attention.register("tandem_probe", probe)
        model.set_attn_implementation("tandem_probe")
        run_module(model, token, token, token)
        model.set_attn_implementation("eager")
    expected = list(range(int(model.config.get_text_config().num_hidden_layers)))
    if [layer for layer, *_ in probe.layers] != expected:
        raise UnsupportedModel(
            f"{description.architecture}: {len(probe.layers)} of {len(expected)} layers use "
            "attention with KV of their own; all must"
        )
    for layer, _, key_size, value_size in probe.layers:
        if key_size != value_size:
            raise UnsupportedModel(
                f"{description.architecture}: layer {layer} has keys of {key_size} and values of "
                f"{value_size}; they must be equal"
            )
    keeps_fp8 = any(isinstance(module, Fp8Linear) for module in model.modules())
    identity = f"{description.identity}{_SCALED_KV if scaled_kv else ''}"
    return KvLayout(
        layers=tuple(LayerShape(heads, size) for _, heads, size, _ in probe.layers),
        block_size=block_size,
        dtype=description.dtype if kv_dtype == "auto" else kv_dtype,
        model_identity=f"{identity}{_KEEPS_FP8 if keeps_fp8 else ''}",
    )


def check_tokens(description: ModelDescription) -> list[int]:
    """A short prompt of tokens that any vocabulary has."""
    length = min(_CHECK_TOKENS, description.context_tokens)
    return [(7919 * (i + 1)) % description.vocabulary for i in range(length)]


@torch.inference_mode()
def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """The module's own logits for the token after these, with eager attention: [vocabulary]."""
    device = next(model.parameters()).device
    row = torch.tensor(tokens, dtype=torch.long, device=device)
    positions = torch.arange(len(tokens), device=device)
    return run_module(model, row, positions, positions[-1:])[0].float()


@torch.inference_mode()
def check_runner(
    description: ModelDescription,
    runner: Runner,
    layout: KvLayout,
    device: torch.device,
    expected: torch.Tensor,
) -> None:
    """Compare with a run in two chunks over scattered blocks; UnsupportedModel if it differs."""
    tokens = check_tokens(description)
    sequence = Sequence("check", tokens, len(tokens), SamplingParams(temperature=0.0, max_tokens=1))
    needed = layout.blocks_for(len(tokens))
    cache = KvCache(layout, 2 * needed, device, runner.kv_format)
    sequence.blocks = list(range(2 * needed - 1, -1, -2))
    half = len(tokens) // 2
    logits = expected
    for span in (Span(sequence, 0, half), Span(sequence, half, len(tokens) - half)):
        if span.count:
            logits = whole(runner.layers(pack([span], cache)))
    rounded = layout.model_identity.endswith(_KEEPS_FP8)
    tolerance = _CHECK_TOLERANCE["fp8_e4m3" if rounded else layout.dtype]
    difference = (logits[0].float() - expected).abs().max() / expected.abs().max()
    if not difference.item() <= tolerance:
        raise UnsupportedModel(
            f"{description.architecture}: the {runner.name} forward disagrees with the model's own "
            f"by {difference.item():.2g} of the largest logit"
        )
