"""torch's varlen attention gets the right keys: from a stand-in, or on CUDA from torch itself."""

from __future__ import annotations

import pytest
import torch

from bench.gpu.varlen_attention import VarlenPrefill
from tests.engine.kinds import why_no_triton
from tests.engine.model.test_attention_flashinfer import CUDA, attend_rows, check_attention


def _varlen(query, key, value, starts, ends, most_q, most_k, *, scale, window_size):
    assert window_size[1] == 0
    assert most_q == int(starts.diff().max()) and most_k == int(ends.diff().max())
    parts = zip(query.split(starts.diff().tolist()), key.split(ends.diff().tolist()),
                value.split(ends.diff().tolist()), strict=True)  # fmt: skip
    return torch.cat([attend_rows(q, k, v, scale, window_size[0]) for q, k, v in parts])


@pytest.fixture
def varlen(monkeypatch):
    if reason := why_no_triton():
        pytest.skip(reason)
    if not CUDA:
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", _varlen)
    return torch.device("cuda" if CUDA else "cpu")


@pytest.mark.parametrize("window", [None, 6])
def test_varlen_gets_gathered_keys(varlen, window):
    check_attention(VarlenPrefill(1), varlen, window)
