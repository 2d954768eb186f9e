"""Right products pass in every type; a product with one wrong scale or block does not."""

from dataclasses import replace

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.fp8.product import Fp8Products
from engine.fp8.product_check import check_product
from engine.fp8.values import E4M3, plain_product, scales_of
from tests.engine.kinds import why_no_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OUTPUTS, INPUTS = 384, 528  # the last block is narrow
KINDS = {"tensor": (), "row": (OUTPUTS, 1), "block": (3, 5)}
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def made(kind, *, biased=False, fixed=False):
    """A weight, its scales and its bias; each scale differs from the others by a tenth or more."""
    torch.manual_seed(7)
    weight = torch.randn(OUTPUTS, INPUTS, device=DEVICE).mul_(60).to(E4M3)
    stored = torch.rand(KINDS[kind], device=DEVICE) * 1e-3 + 1e-4
    one = torch.tensor(0.013, device=DEVICE) if fixed else None
    bias = torch.randn(OUTPUTS, device=DEVICE).bfloat16() if biased else None
    return weight, scales_of(weight.shape, stored, one), bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_right_products_pass(kind, biased, fixed, dtype):
    weight, scales, bias = made(kind, biased=biased, fixed=fixed)
    bias = None if bias is None else bias.to(dtype)
    Fp8Products(by_triton=False).of(weight, scales, bias, dtype)
    if why_no_triton() is None and dtype is torch.bfloat16:
        Fp8Products(by_triton=True).of(weight, scales, bias, dtype)


def refused(wrong, right, dtype=torch.bfloat16):
    """Whether a product of other parts is refused as that of the right ones."""

    def product(x):
        return plain_product(x, *wrong)

    try:
        check_product(product, *right, dtype)
    except UnsupportedModel as error:
        assert "FP8 weights 384 by 528 is wrong on this device" in error.message
        return True
    return False


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_scale_that_is_off_by_3_percent_is_seen(kind, dtype):
    weight, scales, bias = made(kind)
    for place in range(0, scales.weight.numel(), 97 if kind == "row" else 1):
        stored = scales.weight.clone()
        stored.view(-1)[place] *= 1.03
        assert refused((weight, replace(scales, weight=stored), bias), made(kind), dtype)


def test_one_block_with_the_scale_of_its_neighbour_is_seen():
    weight, scales, bias = made("block")
    stored = scales.weight.clone()
    stored[1, 2] = stored[1, 3]
    assert refused((weight, replace(scales, weight=stored), bias), made("block"))


def test_one_block_of_other_numbers_is_seen():
    weight, scales, bias = made("block")
    other = weight.clone()
    other[128:256, 512:] = weight[:128, 512:]
    assert refused((other, scales, bias), made("block"))


def test_a_missing_bias_inputs_beyond_their_scale_and_a_nan_are_seen():
    weight, scales, bias = made("block", biased=True, fixed=True)
    assert refused((weight, scales, None), (weight, scales, bias))
    assert refused((weight, replace(scales, fixed=scales.fixed / 2), bias), (weight, scales, bias))
    other = bias.clone()
    other[-1] = torch.nan
    assert refused((weight, scales, other), (weight, scales, bias))


def test_a_kernel_that_is_wrong_for_many_rows_alone_is_seen():
    parts = made("row")

    def product(x):
        return plain_product(x, *parts) * (1.0 if len(x) <= 32 else 1.05)

    with pytest.raises(UnsupportedModel, match="is wrong on this device"):
        check_product(product, *parts, torch.bfloat16)


def test_weights_of_zeros_are_right():
    weight, *scales = made("block")
    zeros = torch.zeros(weight.shape, device=DEVICE).to(E4M3)
    assert not refused((zeros, *scales), (zeros, *scales))


def test_a_kind_is_checked_once(monkeypatch):
    calls = []
    monkeypatch.setattr("engine.fp8.product.check_product", lambda *parts: calls.append(parts))
    products = Fp8Products(by_triton=False)
    for kind in ("row", "row", "block"):
        products.of(*made(kind), torch.bfloat16)
    products.of(*made("row", biased=True), torch.bfloat16)
    assert len(calls) == 3
