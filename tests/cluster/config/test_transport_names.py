"""The configuration and the chart take the names of the KV transports from the registry."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cluster.chart.values_schema import application_schema
from cluster.config.schema import load_config
from engine.errors import ConfigError
from kv_transfer.transports import registry

TOY = {"toy": "tests.kv_transfer.transports.toy_channel:ToyChannel"}


def test_a_newly_registered_transport_is_configurable_and_in_the_charts_schema(monkeypatch):
    monkeypatch.setattr(registry, "TRANSPORTS", TOY | registry.TRANSPORTS)
    assert load_config(None, {"kv.transport": "toy"}).kv.transport == "toy"
    assert "toy" in application_schema()["KvConfig"]["properties"]["transport"]["enum"]


def test_an_unknown_transport_is_refused_at_load_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"kv\.transport: .*'glo'; did you mean gloo\?"):
        load_config(None, {"kv.transport": "glo"})


def test_reading_a_configuration_does_not_load_torch():
    code = (
        "import sys; from cluster.config.schema import load_config\n"
        "load_config(None, {'kv.transport': 'gloo'}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
