"""The memory plan of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.config.schema import parse_config
from cluster.doctor.findings import Severity
from cluster.doctor.gpus import Gpu
from cluster.doctor.model_files import look_at_model, stored_parameters

PARAMETER_BYTES = 4
DEMO = Path(__file__).parents[3] / "models" / "demo"


def found(folder, free_bytes, gpus=(), **replicas):
    sections = {name: {"replicas": count} for name, count in replicas.items()}
    model = {"path": str(folder), "dtype": "float32"}
    config = parse_config({"model": model} | sections)
    return list(look_at_model(config, gpus, free_bytes))


@pytest.mark.parametrize(
    ("copies", "severity"),
    [(1.5, Severity.ERROR), (2.1, Severity.WARNING), (9, Severity.OK)],
)
def test_weights_must_fit_as_often_as_replicas_hold_them(copies, severity):
    size = PARAMETER_BYTES * stored_parameters(DEMO)
    first, memory = found(DEMO, int(copies * size), prefill=1, decode=1)
    assert first.severity is Severity.OK and "million parameters" in first.found
    assert (memory.subject, memory.severity) == ("memory", severity)


def test_replicas_are_spread_over_gpus():
    size = PARAMETER_BYTES * stored_parameters(DEMO)
    gpus = [Gpu("H100", 2 * size, (9, 0))] * 4
    *_, memory = found(DEMO, 0, gpus, prefill=2, decode=2)
    assert memory.severity is Severity.OK and "1 x " in memory.found


def test_a_model_that_is_not_there_is_an_error(tmp_path):
    (only,) = found(tmp_path / "none", 1)
    assert only.severity is Severity.ERROR and "does not exist" in only.found
