"""Products with FP8 weights, against float64; torch has its scaled product on a CPU too."""

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.fp8.product import BlockScaledProduct, Fp8Products, RowScaledProduct
from engine.fp8.values import E4M3, dequantised, quantised, scales_of
from tests.engine.kinds import why_no_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def made(kind, rows, outputs, inputs, *, biased=False, fixed=False):
    """Inputs, and the parts of a weight with scales of a kind."""
    torch.manual_seed(5)
    shape = {
        "tensor": (),
        "row": (outputs, 1),
        "block": (-(-outputs // 128), -(-inputs // 128)),
    }[kind]
    x = torch.randn(rows, inputs, device=DEVICE).bfloat16()
    weight = torch.randn(outputs, inputs, device=DEVICE).mul_(50).to(E4M3)
    one = torch.tensor(0.01, device=DEVICE) if fixed else None
    scales = scales_of(weight.shape, torch.rand(shape, device=DEVICE) / 50, one)
    return x, weight, scales, torch.randn(outputs, device=DEVICE).bfloat16() if biased else None


def expected(x, weight, scales, bias):
    """In float64, of inputs in FP8."""
    values, by_row = quantised(x, scales.width, scales.fixed)
    wide = by_row.double().repeat_interleave(scales.width, 1)[:, : x.shape[1]]
    out = (values.double() * wide) @ dequantised(weight, scales, torch.float32).double().T
    return out if bias is None else out + bias.double()


def near(found, wanted, inputs):
    """Rounded to bfloat16 once, or twice, and now and then an input to its other neighbour."""
    assert found.dtype == torch.bfloat16
    limit = 0.02 * wanted.abs() + 0.02 * inputs**0.5
    assert torch.all((found.double() - wanted).abs() <= limit)


@pytest.mark.parametrize("by_triton", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "row", "block"])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 96, 64), (7, 160, 192), (70, 48, 320)])
def test_a_product(kind, rows, outputs, inputs, biased, fixed, by_triton):
    if by_triton and (reason := why_no_triton()):
        pytest.skip(reason)
    parts = made(kind, rows, outputs, inputs, biased=biased, fixed=fixed)
    product = Fp8Products(by_triton=by_triton).of(*parts[1:], torch.bfloat16)
    near(product(parts[0]), expected(*parts), inputs)
    assert product(parts[0][:0]).shape == (0, outputs)


def test_weights_scaled_by_row_are_torchs_scaled_product():
    for kind in ("tensor", "row"):
        _, *parts = made(kind, 1, 32, 32)
        assert isinstance(Fp8Products(by_triton=False).of(*parts, torch.bfloat16), RowScaledProduct)


def test_weights_scaled_by_block_are_the_kernels_product():
    _, *parts = made("block", 1, 256, 256)
    if reason := why_no_triton():
        pytest.skip(reason)
    assert isinstance(Fp8Products(by_triton=True).of(*parts, torch.bfloat16), BlockScaledProduct)


def test_shapes_that_torch_refuses_are_refused_by_name():
    _, *parts = made("row", 1, 40, 24)
    with pytest.raises(UnsupportedModel, match="FP8 weights 40 by 24"):
        Fp8Products(by_triton=False).of(*parts, torch.bfloat16)
