"""Tensors come out of their files as they were stored, in the wanted type, through a buffer."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import UnsupportedModel
from engine.weights import stored_tensors as module
from engine.weights.stored_tensors import TensorReader, stored_tensors

CPU = torch.device("cpu")


@pytest.fixture
def tensors(tmp_path):
    torch.manual_seed(0)
    made = {
        "matrix": torch.randn(37, 11),
        "half": torch.randn(5, 3).half(),
        "brain": torch.randn(1000).bfloat16(),
        "one": torch.randn(()),
        "none": torch.randn(0, 4),
        "ids": torch.arange(4),
    }
    save_file(made, tmp_path / "model.safetensors")
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_each_type_is_converted_as_torch_does(tensors, tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(module, "BUFFER_BYTES", 128)
    stored = stored_tensors(tmp_path)
    assert set(stored) == set(tensors) - {"ids"}
    targets = {name: torch.empty(one.shape, dtype=dtype) for name, one in stored.items()}
    TensorReader(CPU).read((stored[name], target) for name, target in targets.items())
    for name, target in targets.items():
        assert torch.equal(target, tensors[name].to(dtype)), name


def test_a_part_of_a_larger_tensor_is_filled_alone(tensors, tmp_path):
    stored = stored_tensors(tmp_path)
    whole = torch.full((39, 11), 7.0)
    TensorReader(CPU).read([(stored["matrix"], whole[1:38])])
    assert torch.equal(whole[1:38], tensors["matrix"])
    assert (whole[0] == 7).all() and (whole[38] == 7).all()


def test_shards_are_found_by_their_index_and_other_files_are_left(tmp_path):
    save_file({"a": torch.ones(3), "b": torch.zeros(1)}, tmp_path / "first.safetensors")
    save_file({"c": torch.full((2,), 5.0)}, tmp_path / "second.safetensors")
    save_file({"a": torch.zeros(3)}, tmp_path / "consolidated.safetensors")
    places = {"a": "first.safetensors", "c": "second.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    stored = stored_tensors(tmp_path)
    assert set(stored) == {"a", "c"}
    target = torch.empty(3)
    TensorReader(CPU).read([(stored["a"], target)])
    assert target.tolist() == [1, 1, 1]
    for missing in ("third.safetensors", "../third.safetensors"):
        index.write_text(json.dumps({"weight_map": places | {"d": missing}}))
        reason = re.escape(f"names {missing}, which is not in {tmp_path.name}")
        with pytest.raises(UnsupportedModel, match=reason):
            stored_tensors(tmp_path)


def test_a_damaged_file_is_refused_by_name(tensors, tmp_path):
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(UnsupportedModel, match=r"model\.safetensors is cut short"):
        stored_tensors(tmp_path)
    for bad in (b"", b"\xff" * 100, whole[:20]):
        path.write_bytes(bad)
        with pytest.raises(UnsupportedModel, match=r"model\.safetensors is no safetensors file"):
            stored_tensors(tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_no_endless_loop(tensors, tmp_path):
    stored = stored_tensors(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[: stored["matrix"].offset + 8])
    with pytest.raises(UnsupportedModel, match="ended early"):
        TensorReader(CPU).read([(stored["matrix"], torch.empty(37, 11))])


def test_a_folder_without_weights_has_none(tmp_path):
    assert stored_tensors(tmp_path) == {}
