"""Models whose weights are in FP8, in each form in which they are stored."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

E4M3 = torch.float8_e4m3fn
LARGEST, BLOCK = 448.0, 128


def compressed(strategy: str, dynamic: bool = True, **weights: object) -> dict[str, object]:
    """The quantization_config of compressed-tensors."""
    numbers = {"type": "float", "num_bits": 8, "symmetric": True}
    inputs = {"tensor": "token" if dynamic else "tensor", "channel": "token", "block": "group"}
    group = {
        "targets": ["Linear"],
        "weights": {**numbers, "strategy": strategy, **weights},
        "input_activations": {**numbers, "strategy": inputs[strategy], "dynamic": dynamic},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


FINE = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": None}
FORMS: dict[str, dict[str, object]] = {
    "fine-grained": {**FINE, "weight_block_size": [BLOCK, BLOCK]},
    "fp8 by tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "compressed by tensor": compressed("tensor"),
    "compressed by tensor, static": compressed("tensor", dynamic=False),
    "compressed by channel": compressed("channel"),
    "compressed by block": compressed("block", block_structure=[BLOCK, BLOCK]),
}
STATIC = ("fp8 by tensor", "compressed by tensor, static")
BY_BLOCK = ("fine-grained", "compressed by block")


def wide_shape() -> dict[str, object]:
    """A tiny shape with blocks that are cut by rows, by columns and by fused projections."""
    return {
        "hidden_size": 192,
        "intermediate_size": 320,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
    }


def save_fp8(folder: Path, model: torch.nn.Module, form: str) -> None:
    """Replace the weights in `folder` by FP8 weights, and those of `model` by what they mean."""
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    scale_name = "weight_scale_inv" if form == "fine-grained" else "weight_scale"
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        weight = module.weight.data
        scales = scales_by(weight, form)
        wide = stretched(scales, weight.shape)
        values = (weight / wide).clamp(-LARGEST, LARGEST).to(E4M3)
        tensors[f"{name}.weight"] = values
        tensors[f"{name}.{scale_name}"] = scales.bfloat16() if form == "fine-grained" else scales
        if form in STATIC:
            tensors[f"{name}.input_scale"] = torch.tensor(0.02)
        weight.copy_(values.float() * wide)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": FORMS[form]}))


def scales_by(weight: torch.Tensor, form: str) -> torch.Tensor:
    if form in BY_BLOCK:
        rows, columns = (-(-size // BLOCK) for size in weight.shape)
        grid = [
            weight[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK].abs().max()
            for i in range(rows)
            for j in range(columns)
        ]
        # Of so few bits that bfloat16 has them.
        return (torch.stack(grid).view(rows, columns) / LARGEST).bfloat16().float()
    if "channel" in form:
        return weight.abs().amax(1, keepdim=True) / LARGEST
    return weight.abs().max() / LARGEST


def stretched(scales: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The scale of each weight of a shape."""
    if scales.numel() == 1 or scales.shape == (shape[0], 1):
        return scales
    rows, columns = torch.arange(shape[0]) // BLOCK, torch.arange(shape[1]) // BLOCK
    return scales[rows][:, columns]


def rounded_inputs(model: torch.nn.Module, form: str) -> None:
    """Have the linear layers of a model round their inputs to FP8, as products in FP8 do."""

    def round_input(module: torch.nn.Module, arguments: tuple[torch.Tensor]) -> torch.Tensor:
        (x,) = arguments
        if form in STATIC:
            scale = torch.full_like(x, 0.02)
        else:
            width = BLOCK if form in BY_BLOCK else x.shape[-1]
            parts = [p.abs().amax(-1, keepdim=True).expand_as(p) for p in x.split(width, -1)]
            scale = torch.cat(parts, -1) / LARGEST
        return (x / scale).clamp(-LARGEST, LARGEST).to(E4M3).float() * scale

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(round_input)
