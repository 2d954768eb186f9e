"""A cluster of the demo model, and the programs of `.venv-clients`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.serving import serve

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DEMO = ROOT / "models" / "demo"
# However slow the machine is, nothing is refused for it.
PATIENT = "endpoints: {chat: {ttft_budget_ms: 600000, itl_budget_ms: 60000}}\n"


@pytest.fixture(scope="session")
def clients():
    """The folder of the environments."""
    found = ROOT / ".venv-clients"
    if not found.exists():
        pytest.skip("`make test-clients` sets up .venv-clients")
    return found


@pytest.fixture(scope="session")
def serving(clients, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    (folder / "config.yaml").write_text(PATIENT)
    with serve("--config", str(folder / "config.yaml"), folder=folder) as running:
        yield running


@pytest.fixture
def run(clients, tmp_path):
    """Run a program of an environment in a folder of its own; returns what it printed."""
    private = {"DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    home = {"HOME": str(tmp_path), "OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}

    def run(path: str, *arguments: str, stdin: str | None = None, timeout_s: float = 240) -> str:
        done = subprocess.run(
            [clients / path, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=timeout_s,
            env=os.environ | private | home,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    return run
