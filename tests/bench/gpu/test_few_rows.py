"""The section of few rows runs without a GPU: every way is right, and no row is a failure."""

import importlib.util

import pytest
import torch

from bench.gpu.few_rows import run


def test_dry_run():
    if importlib.util.find_spec("triton") is None:
        skipped = [{"skipped": "triton is not installed"}]
        assert run(torch.device("cpu"), dry=True) == {"products of few rows": skipped}
        return
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here, not interpreted")
    # It mends Triton's interpreter, and must come before Triton.
    importlib.import_module("tests.engine.conftest")
    sections = run(torch.device("cpu"), dry=True)
    products = sections["products of few rows"]
    assert {row["linear"] for row in products} == {
        "qkv",
        "out",
        "gate_up",
        "gate_up, gated",
        "down",
    }
    assert not [row for row in products if not row.get("off", 1) < 1e-6]
    assert {row["way"] for row in sections["chain of a layer"]} == {"cuBLAS", "ours"}
