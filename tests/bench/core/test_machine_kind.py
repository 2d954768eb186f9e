"""Names of machines by their processor."""

from __future__ import annotations

import pytest

from bench.core.machine_kind import machine_kind, title_of


@pytest.mark.parametrize(
    ("processor", "kind"),
    [
        ("AMD EPYC family 26 (avx2 avx512f avx512_bf16)", "zen5"),
        ("AMD EPYC family 25 (avx2 avx512f avx512_bf16)", "zen4"),
        ("AMD EPYC family 25 (avx2)", "zen3"),
        ("AMD EPYC family 23 (avx2)", "zen1-2"),
        ("Intel(R) Xeon(R) Processor family 6 (avx2 avx512f avx512_bf16 amx_bf16)", "xeon-amx"),
        ("Intel(R) Xeon(R) Processor family 6 (avx2 avx512f avx512_bf16)", "xeon"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"),
        (" family  ()", "family"),
        ("()", "unknown"),
    ],
)
def test_a_processor_has_a_short_name(processor, kind):
    assert machine_kind(processor) == kind


def test_a_kind_without_a_title_is_shown_by_its_name():
    assert title_of("zen5") == "AMD Zen 5"
    assert title_of("h100") == "h100"
