"""`tandem doctor` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.cli.main import main
from cluster.doctor import machine

DEMO = Path(__file__).parents[3] / "models" / "demo"


def test_this_machine_can_serve_a_tiny_model(capsys):
    assert main(["doctor", "--model", str(DEMO), "--json"]) in (0, 1)
    subjects = {one["subject"]: one for one in json.loads(capsys.readouterr().out)}
    assert {
        "processor",
        "clock",
        "open files",
        "GPU",
        "HTTP port",
        "Redis",
        "model",
    } <= subjects.keys()
    assert subjects["model"]["severity"] == "ok"


def test_a_finding_is_printed_before_the_next_look(tmp_path, monkeypatch, capsys):
    seen = []

    def look(*_):
        seen.append(capsys.readouterr().out)
        return ()

    monkeypatch.setattr(machine, "look_at_files", look)
    file = tmp_path / "tandem.yaml"
    file.write_text("nothing: 1\n")
    assert main(["doctor", "--config", str(file)]) == 2
    assert len(seen) == 1 and "  processor: " in seen[0]


def test_a_wrong_configuration_is_said_by_line(tmp_path, capsys):
    file = tmp_path / "tandem.yaml"
    file.write_text("kv: {blocks: -1}\nnothing: 1\n")
    assert main(["doctor", "--config", str(file)]) == 2
    lines = [one for one in capsys.readouterr().out.splitlines() if one.startswith("error")]
    assert len(lines) == 2 and any("kv.blocks" in one for one in lines)


@pytest.mark.parametrize("broken", ["torch.cuda.is_available", "engine.free_memory.free_bytes"])
def test_what_cannot_be_looked_at_stops_no_other_look(broken, monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("the driver is broken")

    monkeypatch.setattr(broken, fail)
    assert main(["doctor", "--model", str(DEMO), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (told,) = [one for one in found if "the driver is broken" in one["found"]]
    assert told["severity"] == "warning"
    assert {"configuration", "Kubernetes"} <= {one["subject"] for one in found}
