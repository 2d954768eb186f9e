"""Grouped products: one contract for the loop and for torch's kernel."""

import pytest
import torch

from engine.model.experts.grouped_product import (
    grouped_product,
    product_by_loop,
    product_by_torch,
    why_not_recorded,
)

ROWS_OF_GROUPS = {
    "some": [3, 1, 4, 2],
    "empty groups": [0, 5, 0, 0, 6, 0],
    "all in one": [0, 0, 9],
    "a row": [0, 1],
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", ROWS_OF_GROUPS.values(), ids=ROWS_OF_GROUPS)
@pytest.mark.parametrize("product", [product_by_loop, product_by_torch])
def test_each_group_is_multiplied_with_its_own_weight(product, rows, dtype, transposed):
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(sum(rows), 32).to(device, dtype)
    weight = torch.randn(len(rows), 24, 32).to(device, dtype)
    if transposed:  # as gpt-oss keeps it
        weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    ends = torch.tensor(rows, device=device).cumsum(0, dtype=torch.int32)
    found = product(x, weight, ends)
    groups = torch.arange(len(rows)).repeat_interleave(torch.tensor(rows))
    pairs = zip(x.double().cpu(), groups.tolist(), strict=True)
    expected = [weight[group].double().cpu() @ row for row, group in pairs]
    assert found.shape == (sum(rows), 24) and found.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    found, want = found.double().cpu(), torch.stack(expected)
    torch.testing.assert_close(found, want, rtol=tolerance, atol=5 * tolerance)


def test_why_products_are_not_recorded_is_reported(monkeypatch):
    weight = torch.zeros(2, 16, 16, dtype=torch.bfloat16)
    assert why_not_recorded(weight) == "the experts are on cpu"
    assert grouped_product(weight) is product_by_loop

    class OnCuda:
        """A stand-in for a weight on a GPU."""

        is_cuda, device, dtype, shape = True, "cuda:0", torch.bfloat16, (2, 16, 16)

        def element_size(self):
            return 2

    weight, capability = OnCuda(), (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert why_not_recorded(weight) is None
    assert grouped_product(weight) is product_by_torch
    weight.shape = (2, 16, 12)
    assert "not aligned" in why_not_recorded(weight)
    weight.shape, weight.dtype = (2, 16, 16), torch.float16
    assert "not in bfloat16" in why_not_recorded(weight)
    weight.dtype, capability = torch.bfloat16, (8, 0)
    assert "no grouped kernel" in why_not_recorded(weight)
    assert grouped_product(weight) is product_by_loop
