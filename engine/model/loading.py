"""Loading a model's weights.

The weights of the main families go from their files straight to the device, each to its place in
the tensor that will be computed with. `transformers` loads other models in host memory first.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Mapping
from typing import Any

import torch

from engine.errors import UnsupportedModel, first_line
from engine.fp8.module import fp8_linears, keep_fp8, read_dequantised, stored_with_scale
from engine.fp8.values import has_fp8
from engine.kv.memory import TORCH_DTYPES
from engine.memory.device_memory import check_weights_fit
from engine.model import fused_phi
from engine.model.fused_weights import FAMILIES
from engine.model_description import ModelDescription
from engine.quantization import has_fp8_weights
from engine.startup_timer import StartupTimer
from engine.weights.empty_module import (
    parameter_bytes,
    parameters_without_memory,
    place_parameters,
)
from engine.weights.expert_tensors import StoredMxfp4, StoredPart, stored_parts
from engine.weights.stored_tensors import StoredTensor, TensorReader, stored_tensors

log = logging.getLogger(__name__)

# Taken to change parts of `transformers` that all models of a process share. Of two loads at once,
# one may restore the other's functions, and later models would lack their tied weights.
LOADING = threading.Lock()


def load_weights(
    description: ModelDescription, device: torch.device, timer: StartupTimer | None = None
) -> torch.nn.Module:
    """The model with its weights on the device, in evaluation mode.

    `timer` gets the bytes to read and those that are read, except where `transformers` loads.
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
        model = _loaded(description, device, timer or StartupTimer())
        return model.to(device).eval().requires_grad_(False)
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = first_line(error)
        raise UnsupportedModel(f"{description.folder.name}: {reason}") from error


def _loaded(
    description: ModelDescription, device: torch.device, timer: StartupTimer
) -> torch.nn.Module:
    """The model with its parameters on the device, or with all of it in host memory."""
    if description.architecture not in (*FAMILIES, fused_phi.FAMILY):
        return loaded_by_transformers(description)
    model, every = _empty(description), stored_tensors(description.folder)
    linears = fp8_linears(model, every)
    if linears and has_fp8(device):
        keep_fp8(model, linears, every)
        linears = []
    check_weights_fit(parameter_bytes(model), device)
    stored = _stored_by_name(every, model)
    quantised = {f"{name}.weight": name for name in linears}
    if stored is None:
        return loaded_by_transformers(description)
    place_parameters(model, device)
    names = [name for name, _ in model.named_parameters()]
    timer.expect(sum(_bytes_to_read(name, stored, quantised, every) for name in names), "bytes")
    reader, whole = TensorReader(device, timer.advance), []
    for name, parameter in model.named_parameters():
        if name in quantised:
            read_dequantised(quantised[name], every, parameter.data, reader)
            continue
        parts = stored[name]
        if isinstance(parts, StoredMxfp4):
            parts.read(reader, parameter.data)
        else:
            whole += [(part.stored, parameter.data[part.index]) for part in parts]
    reader.read(whole)
    return model


def _bytes_to_read(
    name: str,
    stored: Mapping[str, list[StoredPart] | StoredMxfp4],
    quantised: Mapping[str, str],
    every: Mapping[str, StoredTensor],
) -> int:
    """The bytes in files that a parameter is read from."""
    if name in quantised:
        return sum(one.nbytes for one in stored_with_scale(quantised[name], every))
    parts = stored[name]
    if isinstance(parts, StoredMxfp4):
        return parts.blocks.nbytes + parts.scales.nbytes
    return sum(part.stored.nbytes for part in parts)


def _empty(description: ModelDescription) -> torch.nn.Module:
    """The module with parameters that have no memory."""
    from transformers import AutoModelForCausalLM

    # A copy, because the module changes its config. What it says of FP8 is not for the module.
    config = copy.deepcopy(description.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with LOADING, parameters_without_memory():
        model: torch.nn.Module = AutoModelForCausalLM.from_config(
            config,
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
    stored: dict[str, StoredTensor], empty: torch.nn.Module
) -> dict[str, list[StoredPart] | StoredMxfp4] | None:
    """Where each parameter is stored; None where only `transformers` can tell.

    It knows checkpoints with other names, and with both of two tied weights, which may differ.
    """
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
    """The model in host memory. UnsupportedModel where a weight is missing, or for FP8 weights."""
    from transformers import AutoModelForCausalLM

    if has_fp8_weights(description.config.to_dict()):
        raise UnsupportedModel(
            f"{description.folder.name}: FP8 weights of {description.architecture}, or of this "
            "form, are not supported; serve its bfloat16 or float16 weights"
        )
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
