"""The fused weights of a decoder, read from a `transformers` module of a known family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.fp8.module import scales_beside
from engine.fp8.values import Scales
from engine.model.experts.module_experts import FAMILIES_WITH_EXPERTS, experts_of
from engine.model.experts.routing import Experts
from engine.weights.empty_module import joined

Tensor = torch.Tensor

# Families whose layers differ only in what `read` reads. Other families run their own module.
FAMILIES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Phi3ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    *FAMILIES_WITH_EXPERTS,
)


@dataclass(slots=True)
class Linear:
    """weight [out, in] and perhaps bias [out]; empty once the weight is packed.

    A weight in FP8 has scales, and every other weight has none.
    """

    weight: Tensor
    bias: Tensor | None = None
    scales: Scales | None = None


@dataclass(frozen=True, slots=True)
class Rotary:
    """Angles of every position, [positions, rotary / 2] each, float32."""

    cosine: Tensor
    sine: Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer. A norm is `x / rms(x) * (weight + norm_offset)`; see Decoder.

    `qkv` is [(heads + 2 kv_heads) * head_size, hidden]; `gate_up` is [2 * intermediate, hidden].
    `post_attention` and `post_mlp` norm a branch before it is added (Gemma 2 and 3). `sinks`
    [heads] are scores of nothing. With `experts`, `gate_up` and `down` are stacked, [experts, ...].
    """

    input_norm: Tensor
    mlp_norm: Tensor
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    rotary: Rotary
    window: int | None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    post_attention: Tensor | None = None
    post_mlp: Tensor | None = None
    sinks: Tensor | None = None
    experts: Experts | None = None


@dataclass(frozen=True, slots=True)
class Decoder:
    """A whole model: `scaling` multiplies scores, `softcap` bounds them.

    `norm_offset` is 1 for Gemma, whose norm weights are stored around 0, else 0. Norms with
    an offset, and `wide_norms`, multiply by their weight before they round.
    """

    embedding: Tensor
    embedding_scale: float
    layers: tuple[Layer, ...]
    final_norm: Tensor
    head: Linear
    heads: int
    kv_heads: int
    head_size: int
    eps: float
    norm_offset: float
    scaling: float
    softcap: float | None
    final_softcap: float | None
    gelu: bool
    wide_norms: bool = False


def read(model: Any, positions: int) -> Decoder:
    """Fuse the weights of a module of one of FAMILIES; rotary tables for that many positions.

    The module's layers are emptied on the way, so that weights never exist twice.
    """
    config = model.config.get_text_config()
    body = model.model
    gemma = config.model_type.startswith("gemma")
    attention = body.layers[0].self_attn
    size = attention.head_dim
    gpt_oss = config.model_type == "gpt_oss"
    rotaries = Rotaries(body.rotary_emb, positions, repeated=not gpt_oss)
    layers = []
    for layer in body.layers:
        layers.append(_layer(layer, config, rotaries))
        for child in (layer.self_attn, layer.mlp):
            child.to("meta")
    return Decoder(
        embedding=body.embed_tokens.weight,
        embedding_scale=float(getattr(body.embed_tokens, "scalar_embed_scale", 1.0)),
        layers=tuple(layers),
        final_norm=_norm(body.norm),
        head=fused(model, ("lm_head",)),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=size,
        eps=float(config.rms_norm_eps),
        norm_offset=float(gemma),
        scaling=float(attention.scaling),
        softcap=getattr(config, "attn_logit_softcapping", None),
        final_softcap=getattr(config, "final_logit_softcapping", None),
        gelu=_is_gelu(config),
        wide_norms=gpt_oss,
    )


class Rotaries:
    """Rotary tables by layer kind, for so many positions, from the model's own module.

    The module gives each angle once, or `repeated` for both dims that it turns.
    """

    def __init__(self, module: Any, positions: int, *, repeated: bool = True) -> None:
        self._module = module
        self._repeated = repeated
        self._positions = torch.arange(positions)[None]
        self._made: dict[str | None, Rotary] = {}

    def of(self, kind: str | None, device: torch.device) -> Rotary:
        """The tables of that kind of layer; None where there is only one kind."""
        if kind not in self._made:
            like = torch.zeros(1, device=device)
            extra = () if kind is None else (kind,)
            cosine, sine = self._module(like, self._positions.to(device), *extra)
            half = cosine.shape[-1] // (2 if self._repeated else 1)
            self._made[kind] = Rotary(
                cosine[0, :, :half].float().contiguous(), sine[0, :, :half].float().contiguous()
            )
        return self._made[kind]


def _layer(layer: Any, config: Any, rotaries: Rotaries) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    sandwich = hasattr(layer, "pre_feedforward_layernorm")
    # Gemma 3 rotates sliding and full layers by different angles.
    kinds = config.model_type.startswith("gemma3")
    kind = config.layer_types[attention.layer_idx] if kinds else None
    experts = experts_of(mlp, config)
    return Layer(
        input_norm=_norm(layer.input_layernorm),
        mlp_norm=_norm(
            layer.pre_feedforward_layernorm if sandwich else layer.post_attention_layernorm
        ),
        qkv=fused(attention, ("qkv_proj",), ("q_proj", "k_proj", "v_proj")),
        out=fused(attention, ("o_proj",)),
        gate_up=(
            Linear(*experts.gate_up)
            if experts
            else fused(mlp, ("gate_up_proj",), ("gate_proj", "up_proj"))
        ),
        down=Linear(*experts.down) if experts else fused(mlp, ("down_proj",)),
        rotary=rotaries.of(kind, attention.o_proj.weight.device),
        window=_window(attention, config),
        query_norm=_norm(getattr(attention, "q_norm", None)),
        key_norm=_norm(getattr(attention, "k_norm", None)),
        post_attention=_norm(layer.post_attention_layernorm) if sandwich else None,
        post_mlp=_norm(layer.post_feedforward_layernorm) if sandwich else None,
        sinks=getattr(attention, "sinks", None),
        experts=experts.experts if experts else None,
    )


def fused(module: Any, *choices: tuple[str, ...]) -> Linear:
    """The first of the alternatives that the module has, its outputs one below the other."""
    names = next(names for names in choices if hasattr(module, names[0]))
    parts = [getattr(module, name) for name in names]
    scales = scales_beside(parts)
    if len(parts) == 1:
        return Linear(parts[0].weight, parts[0].bias, scales)
    biases = [part.bias for part in parts]
    bias = None if biases[0] is None else joined(biases)
    return Linear(joined([part.weight for part in parts]), bias, scales)


def _norm(module: Any) -> Any:
    return None if module is None else module.weight


def _window(attention: Any, config: Any) -> int | None:
    own = getattr(attention, "sliding_window", None)
    if own is None and config.model_type in ("mistral", "mixtral", "phi3"):
        own = getattr(config, "sliding_window", None)
    return own


def _is_gelu(config: Any) -> bool:
    name = getattr(config, "hidden_act", None) or config.hidden_activation
    if name not in ("silu", "gelu_pytorch_tanh"):
        raise ValueError(f"activation {name}")
    return bool(name == "gelu_pytorch_tanh")
