"""The facts of a model that need neither its weights nor torch; a router needs no more.

UnsupportedModel names what cannot be served.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from engine.config import Dtype, ModelConfig, is_hub_name
from engine.errors import UnsupportedModel, first_line
from engine.quantization import refuse_quantised
from engine.safetensors_header import read_header

log = logging.getLogger(__name__)

# A promise: the context of a model that states none, in tokens.
DEFAULT_CONTEXT = 4096
# A bound: the identity covers so many bytes at both ends of every tensor.
_SAMPLE_BYTES = 4096


def without_torch() -> None:
    """Have `transformers` take torch for absent in this process, which then never imports it.

    For a process that computes nothing: with torch, `transformers` takes three times as long to
    import. Call it before either is imported; later it has no effect.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        return
    # Python's own way to say that there is no such module.
    sys.modules["torch"] = None  # type: ignore[assignment]
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The facts of a model that need no weights.

    `identity` is a digest of config and weights: two replicas with the same identity hold the
    same model. `context_tokens` bounds prompt and output together.
    """

    name: str
    folder: Path
    architecture: str
    dtype: str
    context_tokens: int
    vocabulary: int
    eos_ids: frozenset[int]
    identity: str
    config: Any


def describe(config: ModelConfig) -> ModelDescription:
    """Read a model's config; UnsupportedModel says in one line what cannot be served."""
    folder = resolve(config.path)
    loaded = _read_config(folder)
    text = loaded.get_text_config()
    architecture = _architecture(loaded)
    _refuse_by_config(architecture, text)
    dtype = _dtype(config, loaded, text)
    return ModelDescription(
        name=config.name or Path(config.path).name,
        folder=folder,
        architecture=architecture,
        dtype=dtype,
        context_tokens=_context(text, config.context_tokens),
        vocabulary=int(text.vocab_size),
        eos_ids=_eos_ids(folder, text),
        identity=_identity(folder),
        config=loaded,
    )


def resolve(path: str) -> Path:
    """The local folder of a model: a path as it is, a hub name from the hub or its cache."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UnsupportedModel(f"model folder {path} has no config.json")
        refuse_quantised(folder / "config.json", path)
        return folder.resolve()
    if not is_hub_name(path):
        raise UnsupportedModel(f"model folder {path} does not exist")
    from huggingface_hub import hf_hub_download, snapshot_download

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        # Before the weights, which may be many gigabytes.
        refuse_quantised(Path(hf_hub_download(path, "config.json")), path)
        return Path(snapshot_download(path, allow_patterns=patterns))
    except UnsupportedModel:
        raise
    except Exception as error:
        reason = first_line(error)
        raise UnsupportedModel(
            f"model {path} is neither a folder nor to be had from the hub: {reason}"
        ) from error


def _read_config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # each family checks its values in its own way
        reason = first_line(error)
        raise UnsupportedModel(f"{folder.name}: config.json cannot be read: {reason}") from error


def _architecture(config: Any) -> str:
    """The name of the class that `transformers` would build, a decoder language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    named = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{named} is an encoder-decoder; only decoder models are served")
    built = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if built is None:
        raise UnsupportedModel(f"{named} is not a decoder language model of transformers")
    return str(built)


def _refuse_by_config(architecture: str, text: Any) -> None:
    kinds = set(getattr(text, "layer_types", None) or ()) - {
        "full_attention",
        "sliding_attention",
        "chunked_attention",
    }
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()):
        raise UnsupportedModel(f"{architecture}: chunked-attention layers are not supported")
    if kinds:
        raise UnsupportedModel(f"{architecture}: layers of kind {', '.join(sorted(kinds))}")
    if getattr(text, "kv_lora_rank", None):
        raise UnsupportedModel(f"{architecture}: multi-head latent attention is not supported")
    if getattr(text, "num_kv_shared_layers", 0):
        raise UnsupportedModel(f"{architecture}: layers that share KV are not supported")


def _dtype(config: ModelConfig, loaded: Any, text: Any) -> str:
    if config.dtype != "auto":
        return config.dtype
    stored = getattr(loaded, "dtype", None) or getattr(text, "dtype", None) or "float32"
    name = str(stored).removeprefix("torch.")
    if name == "auto" or name not in get_args(Dtype):
        raise UnsupportedModel(f"weights of type {name} are not supported; set model.dtype")
    return name


def _context(text: Any, wanted: int | None) -> int:
    """The model's own length in tokens, less where rotary scaling depends on the batch."""
    own = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    rope = getattr(text, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings")
    if rope.get("rope_type") == "longrope" and original:
        log.info("context limited to %d: longer prompts would change the rotary scaling", original)
        own = min(own or original, original)
    if own is None:
        log.info("the model states no context length; taking %d", wanted or DEFAULT_CONTEXT)
        return wanted or DEFAULT_CONTEXT
    return min(int(own), wanted) if wanted else int(own)


def _eos_ids(folder: Path, text: Any) -> frozenset[int]:
    """End tokens of generation_config.json where there is one, else of the config."""
    value = text.eos_token_id
    generation = folder / "generation_config.json"
    if generation.is_file():
        value = json.loads(generation.read_text()).get("eos_token_id", value)
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


def _identity(folder: Path) -> str:
    """Digest of the config and of each weight file: its header, and both ends of every tensor."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header, entries, data = read_header(file, path)
            digest.update(header)
            for begin, end in sorted(tuple(e["data_offsets"]) for e in entries.values()):
                for offset in (begin, max(begin, end - _SAMPLE_BYTES)):
                    file.seek(data + offset)
                    digest.update(file.read(min(_SAMPLE_BYTES, end - begin)))
    return digest.hexdigest()[:32]
