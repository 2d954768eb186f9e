"""The cost of a request: the seconds of replicas that it used."""

from __future__ import annotations

import pytest

from cluster.telemetry.requests.prices import Prices
from cluster.telemetry.requests.row import ChoiceRow


def test_each_pool_has_its_price_and_decode_computes_local_prompts():
    prices = Prices(prefill=3600.0, decode=7200.0)
    handed_over = ChoiceRow(0, "handed_over", prefill_s=9.0, prefill_share_s=2.0, share_s=0.5)
    local = ChoiceRow(1, "local", prefill_s=9.0, prefill_share_s=2.0, share_s=0.5)
    assert prices.cost_of([handed_over]) == pytest.approx(3.0)
    assert prices.cost_of([handed_over, local]) == pytest.approx(8.0)
    assert prices.cost_of([ChoiceRow(0, "local")]) == 0
    assert not Prices().known
