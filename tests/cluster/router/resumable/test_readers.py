"""The bound of clients that read resumed streams."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from cluster.router.resumable.readers import Readers
from engine.errors import Overloaded


def test_a_tenant_has_half_of_the_readers():
    readers = Readers(4)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(readers.one_of("a"))
        with pytest.raises(Overloaded) as refused, readers.one_of("a"):
            pass
        assert refused.value.retry_after_s
        stack.enter_context(readers.one_of("b"))
        stack.enter_context(readers.one_of("c"))
        with pytest.raises(Overloaded), readers.one_of("d"):
            pass
    with readers.one_of("a"):
        pass
