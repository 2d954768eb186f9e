"""The host memory that loading a model takes, in a process of its own, with a made model.

    python -m bench.engine.load_memory --gib 2

The sink `cpu` is a whole engine on the CPU, whose weights stay in host memory. The sink `meta` is a
device that keeps nothing: what is left is the host memory of a load to a GPU, without CUDA's own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SINKS = ("cpu", "meta")
_TIMEOUT_S = 900.0
_CHUNK = 1 << 20
_SHARDS = 3


@dataclass(frozen=True, slots=True)
class LoadMemory:
    """Bytes: of the weights, resident before the load, and resident at its height, more than that.

    The resident bytes are the kernel's VmRSS and VmHWM, in which pages of mapped files count too.
    """

    weights: int
    before: int
    growth: int


def make_model(folder: Path, size: int) -> None:
    """Write a Llama of about `size` bytes in bfloat16, in three shards, with made weights."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from engine.weights.empty_module import parameters_without_memory

    shape: dict[str, Any] = {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 8192,
        "dtype": "bfloat16",
        "architectures": ["LlamaForCausalLM"],
    }
    layer = 2 * (1024 * (2 * 1024 + 2 * 256) + 3 * 1024 * 2816)
    config = LlamaConfig(**shape, num_hidden_layers=max(1, (size - (32 << 20)) // layer))
    config.save_pretrained(folder)
    with parameters_without_memory():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
    names = list(shapes)
    places: dict[str, str] = {}
    for shard in range(_SHARDS):
        file = f"model-{shard + 1:05}-of-{_SHARDS:05}.safetensors"
        mine = names[shard::_SHARDS]
        _write(folder / file, {name: shapes[name] for name in mine})
        places |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _write(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    import torch

    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    generator = torch.Generator().manual_seed(1)
    made = (0.02 * torch.randn(_CHUNK, generator=generator)).bfloat16()
    random = made.view(torch.uint8).numpy().tobytes()
    ones = torch.ones(_CHUNK, dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes()
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            left = 2 * torch.Size(shape).numel()
            source = ones if "norm" in name else random
            while left > 0:
                file.write(source[:left])
                left -= len(source)


def measure(folder: Path, sink: str) -> LoadMemory:
    """Load the model of a folder in a child process."""
    command = [sys.executable, "-m", "bench.engine.load_memory", "--child", str(folder), sink]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return LoadMemory(**json.loads(done.stdout.splitlines()[-1]))


def _child(folder: str, sink: str) -> LoadMemory:
    import torch
    from transformers import AutoModelForCausalLM

    from engine.config import KvConfig, ModelConfig
    from engine.model.loading import load_weights
    from engine.model_description import describe
    from engine.runtime.engine import Engine

    torch.set_num_threads(1)
    config = ModelConfig(path=folder, operations="torch")
    description = describe(config)
    # What importing the family takes is no part of the load.
    AutoModelForCausalLM._model_mapping[type(description.config)]
    before = _status("VmRSS")
    _forget_height()
    if sink == "cpu":
        cpu = torch.device("cpu")
        Engine.load(description, KvConfig(blocks=16), config, device=cpu, most_tokens=1)
    else:
        load_weights(description, torch.device(sink))
    weights = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
    return LoadMemory(weights, before, _status("VmHWM") - before)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def _forget_height() -> None:
    """Begin VmHWM anew (proc(5), clear_refs); where that is forbidden, it includes the imports."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        print(f"the height includes the imports: {error}", file=sys.stderr)


def main() -> None:
    """Measure both sinks, or one in this process (`--child`)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "SINK"))
    options = parser.parse_args()
    if options.child:
        print(json.dumps(asdict(_child(*options.child))))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), int(options.gib * 2**30))
        for sink in SINKS:
            found = measure(Path(folder), sink)
            mib = {name: round(size / 2**20) for name, size in asdict(found).items()}
            print(f"{sink}: {mib['weights']} MiB of weights, {mib['before']} MiB resident before,")
            print(f"  {mib['growth']} MiB more at the height of the load", flush=True)


if __name__ == "__main__":
    main()
