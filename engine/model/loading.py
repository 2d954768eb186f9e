"""Loading a model's weights through `transformers`."""

from __future__ import annotations

import threading

import torch

from engine.errors import UnsupportedModel
from engine.kv.memory import TORCH_DTYPES
from engine.model_description import ModelDescription

# Taken to change parts of `transformers` that all models of a process share. Of two loads at once,
# one may restore the other's functions, and later models would lack their tied weights.
LOADING = threading.Lock()


def load_weights(description: ModelDescription, device: torch.device) -> torch.nn.Module:
    """The model with its weights on the device, in evaluation mode. Raises UnsupportedModel."""
    from transformers import AutoModelForCausalLM

    model_class = AutoModelForCausalLM._model_mapping[type(description.config)]
    if not getattr(model_class, "_supports_attention_backend", False):
        raise UnsupportedModel(
            f"{description.architecture} does not use transformers' attention interface "
            "(state-space, linear-attention and ALiBi models do not)"
        )
    try:
        with LOADING:
            model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
                description.folder,
                config=description.config,
                dtype=TORCH_DTYPES[description.dtype],
                attn_implementation="eager",
                local_files_only=True,
                use_safetensors=True,
            )
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise UnsupportedModel(f"{description.folder.name}: {reason}") from error
    return model.to(device).eval().requires_grad_(False)
