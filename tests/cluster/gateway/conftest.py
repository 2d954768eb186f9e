"""What stands behind the front ends in most of their tests."""

from __future__ import annotations

import pytest

from tests.cluster.scripted_generator import ScriptedGenerator


@pytest.fixture
def generator() -> ScriptedGenerator:
    return ScriptedGenerator()
