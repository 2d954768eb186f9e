"""What tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cli.fake_router import Router


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that passes for a model before anything is started."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def router() -> Iterator[Router]:
    with Router() as router:
        yield router
