"""Modules without memory, and the places of their parameters."""

import threading

import torch
from torch import nn

from engine.weights.empty_module import (
    joined,
    parameter_bytes,
    parameters_without_memory,
    place_parameters,
)

CPU = torch.device("cpu")


class Attention(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.q_proj = nn.Linear(8, 16, bias=bias)
        self.k_proj = nn.Linear(8, 4, bias=bias)
        self.v_proj = nn.Linear(8, 4, bias=bias)
        self.register_buffer("angles", torch.arange(3.0))


def test_parameters_have_no_memory_and_buffers_are_real():
    with parameters_without_memory():
        module = Attention()
    assert {one.device.type for one in module.parameters()} == {"meta"}
    assert module.angles.tolist() == [0, 1, 2]
    assert parameter_bytes(module) == 4 * (24 * 8 + 24)
    assert Attention().q_proj.weight.device == CPU


def test_other_threads_make_modules_as_before():
    made = []
    with parameters_without_memory():
        thread = threading.Thread(target=lambda: made.append(nn.Linear(2, 2)))
        thread.start()
        thread.join()
    assert made[0].weight.device == CPU


def test_projections_that_are_fused_share_one_tensor():
    with parameters_without_memory():
        module = Attention()
    place_parameters(module, CPU)
    parts = [module.q_proj.weight, module.k_proj.weight, module.v_proj.weight]
    whole = joined(parts)
    assert whole.shape == (24, 8)
    assert whole.data_ptr() == parts[0].data_ptr()
    whole.copy_(torch.arange(24 * 8.0).view(24, 8))
    assert torch.equal(torch.cat(parts), whole)
    bias = joined([module.q_proj.bias, module.k_proj.bias, module.v_proj.bias])
    assert bias.data_ptr() == module.q_proj.bias.data_ptr()


def test_tied_parameters_stay_tied_and_count_once():
    with parameters_without_memory():
        module = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)})
        module["b"].weight = module["a"].weight
    assert parameter_bytes(module) == 4 * 16
    place_parameters(module, CPU)
    assert module["a"].weight is module["b"].weight
    assert module["a"].weight.device == CPU


def test_tensors_that_are_no_neighbours_are_copied_together():
    whole = torch.arange(12.0).view(6, 2)
    first, second = whole[:2], whole[2:6]
    assert joined([first, second]).data_ptr() == whole.data_ptr()
    for parts in ([second, first], [first, whole[3:]], [first, second.clone()]):
        found = joined(parts)
        assert torch.equal(found, torch.cat(parts))
        assert found.data_ptr() != whole.data_ptr()
