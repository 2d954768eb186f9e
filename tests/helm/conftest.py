"""What all tests of the chart share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import kubernetes_validate.utils
import pytest


@pytest.fixture(scope="session", autouse=True)
def schemas_are_read_once() -> Iterator[None]:
    """The package reads megabytes of definitions for each object."""
    with pytest.MonkeyPatch.context() as patch:
        read = kubernetes_validate.utils.schema_contents
        patch.setattr(kubernetes_validate.utils, "schema_contents", cache(read))
        yield
