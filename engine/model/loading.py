"""Loading a model's weights.

The weights of the main families go from their files straight to the device, each to its place in
the tensor that will be computed with. `transformers` loads other models in host memory first.
"""

from __future__ import annotations

import copy
import logging
import threading
from typing import Any

import torch

from engine.errors import UnsupportedModel
from engine.kv.memory import TORCH_DTYPES
from engine.memory.device_memory import check_weights_fit
from engine.model import fused_phi
from engine.model.fused_weights import FAMILIES
from engine.model_description import ModelDescription
from engine.weights.empty_module import (
    parameter_bytes,
    parameters_without_memory,
    place_parameters,
)
from engine.weights.expert_tensors import StoredMxfp4, StoredPart, stored_parts
from engine.weights.stored_tensors import TensorReader, stored_tensors

log = logging.getLogger(__name__)

# Taken to change parts of `transformers` that all models of a process share. Of two loads at once,
# one may restore the other's functions, and later models would lack their tied weights.
LOADING = threading.Lock()


def load_weights(description: ModelDescription, device: torch.device) -> torch.nn.Module:
    """The model with its weights on the device, in evaluation mode.

    Raises UnsupportedModel, ConfigError where the weights find no room, or torch.OutOfMemoryError.
    """
    from transformers import AutoModelForCausalLM

    model_class = AutoModelForCausalLM._model_mapping[type(description.config)]
    if not getattr(model_class, "_supports_attention_backend", False):
        raise UnsupportedModel(
            f"{description.architecture} does not use transformers' attention interface "
            "(state-space, linear-attention and ALiBi models do not)"
        )
    try:
        return _loaded(description, device).to(device).eval().requires_grad_(False)
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = str(error).split("\n", 1)[0]
        raise UnsupportedModel(f"{description.folder.name}: {reason}") from error


def _loaded(description: ModelDescription, device: torch.device) -> torch.nn.Module:
    """The model with its parameters on the device, or with all of it in host memory."""
    if description.architecture not in (*FAMILIES, fused_phi.FAMILY):
        return loaded_by_transformers(description)
    model = _empty(description)
    check_weights_fit(parameter_bytes(model), device)
    stored = _stored_by_name(description, model)
    if stored is None:
        return loaded_by_transformers(description)
    place_parameters(model, device)
    reader = TensorReader(device)
    whole = []
    for name, parameter in model.named_parameters():
        parts = stored[name]
        if isinstance(parts, StoredMxfp4):
            parts.read(reader, parameter.data)
        else:
            whole += [(part.stored, parameter.data[part.index]) for part in parts]
    reader.read(whole)
    return model


def _empty(description: ModelDescription) -> torch.nn.Module:
    """The module with parameters that have no memory."""
    from transformers import AutoModelForCausalLM

    with LOADING, parameters_without_memory():
        model: torch.nn.Module = AutoModelForCausalLM.from_config(
            # A copy, because the module changes its config.
            copy.deepcopy(description.config),
            dtype=TORCH_DTYPES[description.dtype],
            attn_implementation="eager",
        )
    if description.dtype == "float16":
        # As `transformers` loads them: gpt-oss keeps its norms in float32.
        kept = getattr(model, "_keep_in_fp32_modules", None) or ()
        for name, module in model.named_modules():
            if name.rpartition(".")[2] in kept:
                module.float()
    return model


def _stored_by_name(
    description: ModelDescription, empty: torch.nn.Module
) -> dict[str, list[StoredPart] | StoredMxfp4] | None:
    """Where each parameter is stored; None where only `transformers` can tell.

    It knows checkpoints with other names, and with both of two tied weights, which may differ.
    """
    stored = stored_tensors(description.folder)
    found: dict[str, list[StoredPart] | StoredMxfp4] = {}
    named: dict[int, list[str]] = {}
    for name, parameter in empty.named_parameters(remove_duplicate=False):
        named.setdefault(id(parameter), []).append(name)
    for name, parameter in empty.named_parameters():
        shape = tuple(parameter.shape)
        if parts := stored_parts(name, shape, stored):
            found[name] = parts
            continue
        kept = [alias for alias in named[id(parameter)] if alias in stored]
        if len(kept) != 1 or stored[kept[0]].shape != shape:
            log.info("weights through transformers: %s is stored as %s", name, kept or "nothing")
            return None
        found[name] = [StoredPart(stored[kept[0]])]
    return found


def loaded_by_transformers(description: ModelDescription) -> torch.nn.Module:
    """The model in host memory. UnsupportedModel where a weight is missing."""
    from transformers import AutoModelForCausalLM

    with LOADING:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            description.folder,
            config=description.config,
            dtype=TORCH_DTYPES[description.dtype],
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise UnsupportedModel(
            f"{description.folder.name}: {len(missing)} weights are missing, first {missing[0]}"
        )
    result: torch.nn.Module = model
    return result
