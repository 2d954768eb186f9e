"""The settings that follow from the device, and what the log says about them."""

from __future__ import annotations

import pytest

from cluster.config.schema import parse_config
from cluster.replica.device_defaults import loop_limits


def values(limits):
    return limits.chunk_tokens, limits.max_batch, limits.itl_factor, limits.mixed_passes


@pytest.mark.parametrize(
    ("device", "expected"), [("cpu", (512, 64, 2.0, False)), ("cuda", (2048, 256, None, True))]
)
def test_limits_that_are_not_configured_follow_from_the_device(device, expected):
    limits = loop_limits(parse_config({}), device)
    assert values(limits) == expected
    assert limits.origins.count(f"(auto on {device})") == 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_configured_limits_hold_on_every_device(device):
    document = {
        "prefill": {"chunk_tokens": 96},
        "decode": {"max_batch": 7, "itl_factor": 1.0, "mixed_passes": device == "cpu"},
    }
    limits = loop_limits(parse_config(document), device)
    assert values(limits) == (96, 7, 1.0, device == "cpu")
    assert limits.origins.count("(configured)") == 4
    assert "decode.itl_factor 1.0 (configured)" in limits.origins


def test_null_is_a_configured_value():
    limits = loop_limits(parse_config({"decode": {"itl_factor": None}}), "cpu")
    assert limits.itl_factor is None
    assert "decode.itl_factor null (configured)" in limits.origins


def test_the_log_names_each_value_and_its_origin():
    limits = loop_limits(parse_config({"decode": {"max_batch": 128}}), "cuda")
    assert limits.origins == (
        "prefill.chunk_tokens 2048 (auto on cuda), decode.max_batch 128 (configured), "
        "decode.itl_factor null (auto on cuda), decode.mixed_passes true (auto on cuda)"
    )
