"""The GGUF writer, read back byte by byte."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import load_file

from bench.core.model_135m import ModelShape, make
from bench.systems.gguf import ALIGNMENT, interleave, tensor_name, write

SMALL = ModelShape(hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2, vocabulary=300)
_ATTENTION = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")
_LAYER_NAMES = (*_ATTENTION, "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


class Reader:
    """As much of GGUF as is written."""

    def __init__(self, data):
        self.data, self.position = data, 0
        magic, version, tensors, values = self.take("<4sIQQ")
        assert (magic, version) == (b"GGUF", 3)
        self.metadata = {self.string(): self.value() for _ in range(values)}
        self.tensors = {self.string(): self.entry() for _ in range(tensors)}
        self.position += -self.position % ALIGNMENT

    def take(self, form):
        found = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return found

    def string(self):
        (size,) = self.take("<Q")
        return self.take(f"<{size}s")[0].decode()

    def value(self):
        (kind,) = self.take("<I")
        return self.string() if kind == 8 else self.take({4: "<I", 6: "<f"}[kind])[0]

    def entry(self):
        (dimensions,) = self.take("<I")
        shape = self.take(f"<{dimensions}Q")
        return (tuple(reversed(shape)), *self.take("<IQ"))

    def tensor(self, name):
        shape, kind, offset = self.tensors[name]
        dtype = {0: torch.float32, 30: torch.bfloat16}[kind]
        count = torch.Size(shape).numel()
        return torch.frombuffer(
            bytearray(self.data), dtype=dtype, count=count, offset=self.position + offset
        ).view(shape)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = make(tmp_path_factory.mktemp("bench") / "model", SMALL)
    return folder, Reader(write(folder, folder.with_suffix(".gguf")).read_bytes())


def test_the_metadata_describe_the_model(written):
    folder, reader = written
    config = json.loads((folder / "config.json").read_text())
    assert reader.metadata["general.architecture"] == "llama"
    assert reader.metadata["llama.block_count"] == 2
    assert reader.metadata["llama.attention.head_count_kv"] == 2
    assert reader.metadata["llama.rope.dimension_count"] == 16
    assert reader.metadata["llama.vocab_size"] == 300
    assert reader.metadata["llama.rope.freq_base"] == 10_000
    epsilon = reader.metadata["llama.attention.layer_norm_rms_epsilon"]
    assert epsilon == pytest.approx(config["rms_norm_eps"])


def test_every_tensor_is_there_once_and_aligned(written):
    _, reader = written
    layers = {f"blk.{layer}.{name}.weight" for layer in range(2) for name in _LAYER_NAMES}
    assert set(reader.tensors) == {"token_embd.weight", "output_norm.weight", *layers}
    assert all(offset % ALIGNMENT == 0 for _, _, offset in reader.tensors.values())


def test_the_weights_are_the_same_bit_for_bit(written):
    folder, reader = written
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        kept = reader.tensor(tensor_name(name))
        if "q_proj" in name or "k_proj" in name:
            tensor = interleave(tensor, 4 if "q_proj" in name else 2)
        assert torch.equal(kept.to(tensor.dtype), tensor), name
        assert kept.dtype == (torch.float32 if tensor.ndim == 1 else torch.bfloat16)


def test_halves_become_adjacent_pairs():
    rows = torch.arange(8).view(8, 1)
    assert interleave(rows, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_an_unknown_tensor_is_refused():
    with pytest.raises(KeyError):
        tensor_name("model.layers.0.self_attn.q_norm.weight")
