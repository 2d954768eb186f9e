"""What a server is measured with is a configuration that loads."""

from __future__ import annotations

import pytest

from bench.compare.claim_modes import MODES, STATIC_MODE
from bench.compare.claims import _CHUNKS, _EACH_TOKEN
from bench.core.tandem_config import WIDE, server_config
from bench.systems.contenders import TANDEM_CONFIG_EACH_TOKEN, BurstShape
from cluster.config.schema import load_config


@pytest.mark.parametrize(
    "more",
    [
        *("", TANDEM_CONFIG_EACH_TOKEN, _EACH_TOKEN, _CHUNKS.format(256) + _EACH_TOKEN),
        *(WIDE, WIDE + _EACH_TOKEN, STATIC_MODE, *MODES.values()),
    ],
)
def test_every_setting_loads(tmp_path, more):
    file = tmp_path / "tandem.yaml"
    file.write_text(server_config(more))
    chat = load_config(file).endpoints["chat"]
    assert chat.ttft_budget_ms == 600_000


@pytest.mark.parametrize("slow", [1, 4])
def test_a_burst_is_served_with_its_budgets(tmp_path, slow):
    file = tmp_path / "tandem.yaml"
    file.write_text(server_config(BurstShape(slow=slow).tandem_config))
    config = load_config(file)
    chat = config.endpoints["chat"]
    assert chat.ttft_budget_ms == 1000 * slow
    assert chat.itl_budget_ms == config.decode.itl_budget_ms == 60 * slow
