"""Rounding to FP8 and its scales."""

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.fp8.values import (
    E4M3,
    Scales,
    dequantised,
    in_type,
    joined_scales,
    quantised,
    scales_of,
)
from tests.engine.kinds import why_no_triton

INPUTS = [(5, 192, 192), (3, 192, 128), (1, 96, 96), (40, 320, 128)]


def test_large_numbers_become_the_largest_and_nans_stay():
    x = torch.tensor([0.0, 448.0, 449.0, -1e30, float("inf"), float("nan")])
    found = in_type(x, E4M3).float()
    assert found[:5].tolist() == [0.0, 448.0, 448.0, -448.0, 448.0]
    assert found[5].isnan()


@pytest.mark.parametrize(("rows", "columns", "width"), INPUTS)
def test_inputs_have_scales_of_their_own(rows, columns, width):
    torch.manual_seed(1)
    x = torch.randn(rows, columns) * torch.logspace(-3, 3, rows)[:, None]
    values, scales = quantised(x, width, None)
    assert values.shape == x.shape and scales.shape == (rows, -(-columns // width))
    wide = scales.repeat_interleave(width, 1)[:, :columns]
    # Half of the last of 3 bits; tiny numbers are subnormal.
    assert torch.all((values.float() * wide - x).abs() <= x.abs() / 16 + wide * 2**-10)
    assert torch.all(values.float().abs().amax(1) == 448.0)


def test_rows_of_zeros_stay_zeros():
    values, scales = quantised(torch.zeros(2, 8), 8, None)
    assert not values.float().any() and scales.isfinite().all()


@pytest.mark.parametrize("fixed", [None, torch.tensor([0.01])], ids=["own", "fixed"])
@pytest.mark.parametrize(("rows", "columns", "width"), INPUTS)
def test_the_kernel_rounds_inputs_as_torch_does(rows, columns, width, fixed):
    if reason := why_no_triton():
        pytest.skip(reason)
    from engine.fp8.product import quantised_by_triton

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    x = torch.randn(rows, columns, device=device).bfloat16()
    x[0, 0] = 60.0
    fixed = None if fixed is None else fixed.to(device)
    found, wanted = quantised_by_triton(x, width, fixed), quantised(x, width, fixed)
    torch.testing.assert_close(found[1], wanted[1])
    # A quotient may be rounded to a neighbour where it is between two.
    differ = found[0].float() != wanted[0].float()
    assert differ.float().mean() < 0.01
    torch.testing.assert_close(found[0].float(), wanted[0].float(), rtol=0.13, atol=0.01)


def test_stored_scales_are_told_by_their_shape():
    shape = torch.Size((300, 200))
    assert scales_of(shape, torch.ones(()), None).height == 300
    assert scales_of(shape, torch.ones(300, 1), None).height == 1
    assert scales_of(shape, torch.ones(300), None).weight.shape == (300, 1)
    block = scales_of(shape, torch.ones(3, 2).bfloat16(), torch.tensor(2.0).bfloat16())
    assert (block.height, block.width, block.weight.dtype) == (128, 128, torch.float32)
    assert block.fixed.shape == (1,) and block.fixed.dtype == torch.float32
    with pytest.raises(UnsupportedModel, match=r"shape \[2, 3\] for weights \[300, 200\]"):
        scales_of(shape, torch.ones(2, 3), None)


@pytest.mark.parametrize("rows", [[96, 32, 32], [256, 128, 128], [200, 72, 40], [64, 64, 65]])
@pytest.mark.parametrize("kind", ["tensor", "row", "block"])
def test_joined_scales_mean_the_same_weights(rows, kind):
    torch.manual_seed(2)
    columns = 200
    parts, weights = [], []
    for count in rows:
        shape = {"tensor": (), "row": (count, 1), "block": (-(-count // 128), 2)}[kind]
        weights.append(torch.randn(count, columns).to(E4M3))
        parts.append(scales_of(weights[-1].shape, torch.rand(shape), torch.rand(1)))
    apart = [dequantised(w, s, torch.float32) for w, s in zip(weights, parts, strict=True)]
    joined = joined_scales(parts, rows)
    assert torch.equal(dequantised(torch.cat(weights), joined, torch.float32), torch.cat(apart))
    assert joined.fixed == max(part.fixed for part in parts)


def test_scales_of_equal_blocks_are_joined_as_they_are():
    parts = [Scales(torch.rand(2, 3), 128, 128), Scales(torch.rand(1, 3), 128, 128)]
    joined = joined_scales(parts, [256, 128])
    assert joined.height == 128 and joined.weight.shape == (3, 3) and joined.fixed is None
