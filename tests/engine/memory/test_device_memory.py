"""A device's memory, with stand-ins for CUDA's calls."""

from types import SimpleNamespace

import pytest
import torch

from engine.errors import ConfigError
from engine.memory.device_memory import (
    CudaMemory,
    check_weights_fit,
    refusing_out_of_memory,
    release_unused,
)

GIB = 2**30
CUDA = torch.device("cuda", 0)


@pytest.fixture
def cuda(monkeypatch):
    """A GPU of 80 GiB; torch keeps 20 GiB that it does not use until it is told to give it back."""
    state = SimpleNamespace(free=10 * GIB, kept=20 * GIB, calls=[], peak=0)

    def empty_cache():
        state.calls.append("emptied")
        state.free, state.kept = state.free + state.kept, 0

    stand_ins = {
        "mem_get_info": lambda device: (state.free, 80 * GIB),
        "empty_cache": empty_cache,
        "synchronize": lambda device: state.calls.append("waited"),
        "memory_allocated": lambda device: 50 * GIB,
        "reset_peak_memory_stats": lambda device: state.calls.append("reset"),
        "max_memory_allocated": lambda device: 50 * GIB + state.peak,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return state


def test_memory_that_torch_keeps_is_given_back_before_it_is_counted(cuda):
    assert CudaMemory(CUDA).used() == 50 * GIB
    assert cuda.calls == ["waited", "emptied"]


def test_the_height_of_a_call_is_what_it_added(cuda):
    def call():
        assert cuda.calls[-1] == "reset"
        cuda.peak = 3 * GIB

    assert CudaMemory(CUDA).peak_of(call) == 3 * GIB


def test_a_cpu_has_nothing_to_give_back(cuda):
    release_unused(torch.device("cpu"))
    assert cuda.calls == []


def test_weights_that_find_no_room_are_told_with_both_numbers(cuda):
    check_weights_fit(9 * GIB, CUDA)
    with pytest.raises(ConfigError) as refusal:
        check_weights_fit(15 * GIB, CUDA)
    assert refusal.value.message == (
        "model.path: the weights need 15.00 GiB, and there is 10.00 GiB free of 80.00 GiB on cuda:0"
    )


def test_out_of_memory_is_one_line_with_the_numbers(cuda):
    with (
        pytest.raises(ConfigError) as refusal,
        refusing_out_of_memory(CUDA, "chat-70b"),
    ):
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of …\nmore"
        )
    assert refusal.value.message == (
        "chat-70b: out of memory at 1.96 GiB: there is 10.00 GiB free of 80.00 GiB on cuda:0"
    )
    assert not refusal.value.retryable


def test_other_errors_pass(cuda):
    with pytest.raises(RuntimeError, match="other"), refusing_out_of_memory(CUDA, "m"):
        raise RuntimeError("other")
