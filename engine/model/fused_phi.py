"""The first Phi models: layers whose attention and MLP read the same norm, in plain torch.

Norms are LayerNorms with a bias, here weight and bias as one tensor [2, hidden]. The MLP has no
gate, and every product has a bias. `transformers`' modeling_phi is the source.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import gelu, layer_norm

from engine.model.fused_weights import Decoder, Layer, Rotaries, fused
from engine.model.layers_op_by_op import ReadyLayer
from engine.model.ops_torch import TorchOps
from engine.model.packed_batch import PackedBatch

Tensor = torch.Tensor

FAMILY = "PhiForCausalLM"


def why_not(config: Any) -> str | None:
    """The reason if these layers cannot be computed so, else None."""
    if config.qk_layernorm:
        return "queries and keys have LayerNorms"
    if config.hidden_act not in ("gelu_new", "gelu_pytorch_tanh"):
        return f"activation {config.hidden_act}"
    return None


def read(model: Any, positions: int) -> Decoder:
    """The weights of a module of FAMILY; its layers are emptied on the way."""
    config, body = model.config, model.model
    attention = body.layers[0].self_attn
    rotaries = Rotaries(body.rotary_emb, positions)
    layers = []
    for layer in body.layers:
        layers.append(_layer(layer, rotaries))
        for child in (layer.self_attn, layer.mlp):
            child.to("meta")
    return Decoder(
        embedding=body.embed_tokens.weight,
        embedding_scale=1.0,
        layers=tuple(layers),
        final_norm=_norm(body.final_layernorm),
        head=fused(model, ("lm_head",)),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=attention.head_dim,
        eps=float(config.layer_norm_eps),
        norm_offset=0.0,
        scaling=float(attention.scaling),
        softcap=None,
        final_softcap=None,
        gelu=True,
    )


class PhiOps(TorchOps):
    """See engine.model.fused_forward.Layers."""

    name = "torch operations, Phi's layers"

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """LayerNorm; `weight` has its bias too."""
        return layer_norm(x, x.shape[-1:], weight[0], weight[1], self._decoder.eps)

    def gate(self, gate_up: Tensor) -> Tensor:
        """GELU of [tokens, n]: there is no gate."""
        return gelu(gate_up, approximate="tanh")

    def run(
        self,
        x: Tensor,
        layers: list[ReadyLayer],
        stores: list[Tensor],
        batch: PackedBatch,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """See Layers."""
        for index, (layer, store) in enumerate(zip(layers, stores, strict=True)):
            hidden = self.norm(x, layer.weights.input_norm)
            attended = self.attend(layer.qkv(hidden), layer.weights, store, batch)
            if wanted is not None and index + 1 == len(layers):
                x, hidden, attended = x[wanted], hidden[wanted], attended[wanted]
            x = layer.out(attended) + layer.mlp(hidden) + x
        return x


def _layer(layer: Any, rotaries: Rotaries) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    norm = _norm(layer.input_layernorm)
    return Layer(
        input_norm=norm,
        mlp_norm=norm,
        qkv=fused(attention, ("q_proj", "k_proj", "v_proj")),
        out=fused(attention, ("dense",)),
        gate_up=fused(mlp, ("fc1",)),
        down=fused(mlp, ("fc2",)),
        rotary=rotaries.of(None, attention.dense.weight.device),
        window=None,
    )


def _norm(module: Any) -> Tensor:
    return torch.stack((module.weight, module.bias))
