"""What a server is measured with is a configuration that loads."""

from __future__ import annotations

import pytest

from bench.claim_modes import MODES, STATIC_MODE
from bench.claims import _CHUNKS, _UNHELD
from bench.contenders import TANDEM_CONFIG, TANDEM_CONFIG_UNHELD
from bench.setting import WIDE, server_config
from cluster.config import load_config


@pytest.mark.parametrize(
    "more",
    [
        *("", TANDEM_CONFIG, TANDEM_CONFIG_UNHELD, _UNHELD, _CHUNKS.format(256) + _UNHELD),
        *(WIDE, WIDE + _UNHELD, STATIC_MODE, *MODES.values()),
    ],
)
def test_every_setting_loads(tmp_path, more):
    file = tmp_path / "tandem.yaml"
    file.write_text(server_config(more))
    chat = load_config(file).endpoints["chat"]
    assert chat.ttft_budget_ms == (1000 if ": 1000" in more else 600_000)
