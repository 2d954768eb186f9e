"""What `tandem serve` serves: the pools in words, and a model that all replicas find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cluster.config.schema import TandemConfig
from engine.config import is_hub_name
from engine.errors import ConfigError
from engine.quantization import refuse_quantised


def pools_of(config: TandemConfig) -> str:
    """The pools in words."""
    prefill, decode = config.prefill.replicas, config.decode.replicas
    if prefill:
        return f"prefill replicas: {prefill}, decode replicas: {decode}"
    return f"one pool, of replicas that prefill and decode: {decode}"


def with_model_here(config: TandemConfig) -> TandemConfig:
    """The configuration with a local model folder; a hub name is fetched once for all replicas.

    Raises a TandemError where there is none, before anything is started.
    """
    path, folder = config.model.path, Path(config.model.path)
    if is_hub_name(path) and not folder.exists():
        from engine.model_description import resolve

        name = config.model.name or folder.name
        return replace(config, model=replace(config.model, path=str(resolve(path)), name=name))
    if not folder.is_dir():
        raise ConfigError(f"model.path: there is no folder {folder} (--model)")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model.path: {folder} holds no config.json (--model)")
    refuse_quantised(folder / "config.json", path)
    return config
