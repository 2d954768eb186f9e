"""The experts of a `transformers` module of a known family, without copying a weight.

Mixtral and Qwen3-MoE keep [experts, 2 * intermediate, hidden], gates above ups. gpt-oss keeps
[experts, hidden, 2 * intermediate], gates and ups in turn; here its weights are views.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.model.experts.routing import ClampedGate, ExpertRouter, Experts

Tensor = torch.Tensor

MIXTRAL, QWEN, GPT_OSS = "MixtralForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM"
FAMILIES_WITH_EXPERTS = (MIXTRAL, QWEN, GPT_OSS)


@dataclass(frozen=True, slots=True)
class ModuleExperts:
    """The experts of a layer; `gate_up` and `down` have a weight [experts, out, in] and a bias."""

    experts: Experts
    gate_up: tuple[Tensor, Tensor | None]
    down: tuple[Tensor, Tensor | None]


def experts_of(mlp: Any, config: Any) -> ModuleExperts | None:
    """The experts of an MLP; None where it has none."""
    stacks = getattr(mlp, "experts", None)
    if stacks is None:
        return None
    if config.model_type == "gpt_oss":
        router = ExpertRouter(
            mlp.router.weight,
            mlp.router.bias,
            config.num_experts_per_tok,
            softmax_of_chosen=True,
        )
        gate = ClampedGate(float(stacks.alpha), float(stacks.limit))
        return ModuleExperts(
            Experts(router, gate),
            (stacks.gate_up_proj.transpose(1, 2), stacks.gate_up_proj_bias),
            (stacks.down_proj.transpose(1, 2), stacks.down_proj_bias),
        )
    mixtral = config.model_type == "mixtral"
    router = ExpertRouter(
        mlp.gate.weight,
        None,
        config.num_experts_per_tok,
        renormalised=mixtral or bool(config.norm_topk_prob),
        rounded=not mixtral,
    )
    return ModuleExperts(Experts(router), (stacks.gate_up_proj, None), (stacks.down_proj, None))


def why_not(config: Any, model: Any) -> str | None:
    """The reason if layers of one of these families cannot be computed so, else None."""
    gpt_oss = config.model_type == "gpt_oss"
    if not gpt_oss and config.hidden_act != "silu":
        return f"activation {config.hidden_act}"
    hidden = config.hidden_size
    for layer in model.model.layers:
        stacks = getattr(layer.mlp, "experts", None)
        if stacks is None:
            continue
        shape = tuple(stacks.gate_up_proj.shape)
        count, inner = len(stacks.down_proj), stacks.down_proj.shape[1 if gpt_oss else -1]
        if shape != ((count, hidden, 2 * inner) if gpt_oss else (count, 2 * inner, hidden)):
            return f"experts of shape {shape}"
    return None
