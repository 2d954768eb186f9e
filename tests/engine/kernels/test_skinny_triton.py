"""The product of few rows against float64: all tails, no gaps, the same bits in every batch."""

import importlib.util

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine.model.fused_weights import Linear
from engine.model.products.skinny import SkinnyProducts
from engine.model.products.skinny_tiles import SkinnyTiles
from tests.engine.kinds import why_no_triton

pytestmark = pytest.mark.skipif(why_no_triton() is not None, reason=str(why_no_triton()))

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The norm of the error relative to the answer's; the interpreter cuts to bfloat16 without rounding.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 5e-4, torch.bfloat16: 5e-3}
GUARD = 77


def guarded(values):
    """The values in the middle of a larger buffer of NaN, and that buffer."""
    buffer = torch.full((values.numel() + 2 * GUARD,), torch.nan, dtype=values.dtype)
    buffer = buffer.to(DEVICE)
    inside = buffer[GUARD : GUARD + values.numel()].view(values.shape)
    inside.copy_(values)
    return inside, buffer


def weights_of(outputs, inputs, dtype, biased):
    weight = torch.randn(outputs, inputs).to(DEVICE, dtype)
    return Linear(weight, torch.randn(outputs).to(DEVICE, dtype) if biased else None)


def exact(x, linear):
    answer = x.cpu().double() @ linear.weight.cpu().double().T
    return answer if linear.bias is None else answer + linear.bias.cpu().double()


def off(got, expected):
    return ((got.cpu().double() - expected).norm() / expected.norm()).item()


def small(splits, outputs=32, depth=32):
    return SkinnyProducts(1, tiles=SkinnyTiles(outputs, depth, splits, 4, 3))


# To shrink a failure takes the interpreter minutes.
@settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    rows=st.integers(1, 64),
    outputs=st.integers(1, 150),
    inputs=st.integers(1, 150),
    splits=st.integers(1, 6),
    biased=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCE)),
    seed=st.integers(0, 99),
)
def test_any_shape_is_right_and_writes_its_answer_alone(
    rows, outputs, inputs, splits, biased, dtype, seed
):
    torch.manual_seed(seed)
    linear = weights_of(outputs, inputs, dtype, biased)
    linear.weight, _ = guarded(linear.weight)
    x, _ = guarded(torch.randn(rows, inputs).to(dtype))
    skinny = small(splits)
    out, buffer = guarded(torch.full((rows, outputs), torch.nan, dtype=dtype))
    for _ in range(2):  # The second time over a poisoned workspace.
        got = skinny.product(x, linear, out.fill_(torch.nan))
        assert off(got, exact(x, linear)) < TOLERANCE[dtype]
        skinny.poison()
    assert buffer[:GUARD].isnan().all() and buffer[-GUARD:].isnan().all()


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 96, 64), (19, 70, 45), (64, 33, 128)])
def test_the_gate_in_the_product(rows, outputs, inputs, dtype, gelu):
    torch.manual_seed(1)
    for biased in (False, True):
        linear = weights_of(2 * outputs, inputs, dtype, biased)
        linear.weight.mul_(0.2)
        x = torch.randn(rows, inputs).to(DEVICE, dtype)
        gate, up = exact(x, linear).chunk(2, dim=-1)
        act = torch.nn.functional.gelu(gate, approximate="tanh") if gelu else gate * gate.sigmoid()
        got = small(1).gated(x, linear, x.new_full((rows, outputs), torch.nan), gelu=gelu)
        assert off(got, act * up) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_chosen_tiles(dtype):
    torch.manual_seed(2)
    for outputs, inputs in ((256, 512), (200, 330)):
        linear = weights_of(outputs, inputs, dtype, True)
        x = torch.randn(40, inputs).to(DEVICE, dtype)
        skinny = SkinnyProducts(24)
        assert off(skinny.product(x, linear), exact(x, linear)) < TOLERANCE[dtype]


def in_order(self, a, b, sums, *_):
    """The interpreter's product as a chain of additions, which a matrix unit's is, too."""
    from triton.runtime.interpreter import TensorHandle

    acc = sums.data.copy()
    for k in range(a.data.shape[1]):
        acc += a.data[:, k, None].astype(np.float32) * b.data[k].astype(np.float32)
    return TensorHandle(acc, sums.dtype.scalar)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("splits", [1, 4])
def test_a_row_has_the_same_bits_in_every_batch(monkeypatch, dtype, splits):
    """NumPy's own products add up in an order that depends on the number of rows."""
    if DEVICE == "cpu":
        from triton.runtime.interpreter import InterpreterBuilder

        monkeypatch.setattr(InterpreterBuilder, "create_dot", in_order)
    torch.manual_seed(3)
    linear, gate = weights_of(96, 300, dtype, True), weights_of(192, 300, dtype, False)
    x = torch.randn(64, 300).to(DEVICE, dtype)
    skinny, whole = small(splits), small(1)
    every = skinny.product(x, linear)
    gated = whole.gated(x, gate, gelu=False)
    for rows in (1, 2, 15, 16, 17, 33, 48):
        for first in (0, 64 - rows):
            some = x[first : first + rows].contiguous()
            same = slice(first, first + rows)
            assert torch.equal(skinny.product(some, linear), every[same])
            assert torch.equal(whole.gated(some, gate, gelu=False), gated[same])


def test_equal_launches_give_equal_bits_and_leave_no_arrivals():
    torch.manual_seed(4)
    linear = weights_of(70, 256, torch.float32, False)
    x = torch.randn(9, 256).to(DEVICE)
    skinny = small(4)
    first = skinny.product(x, linear)
    assert all(torch.equal(skinny.product(x, linear), first) for _ in range(5))


def test_why_there_is_no_dependent_launch():
    from engine.kernels.dependent_launch import why_no_dependent_launch

    assert importlib.util.find_spec("triton") is not None
    assert "older than Hopper" in why_no_dependent_launch(torch.device("cpu"))
