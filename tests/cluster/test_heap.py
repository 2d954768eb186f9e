"""The garbage collector of a process that serves."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from cluster.heap import settle


class _Node:
    """Something that can be in a cycle, and be asked whether it is gone."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_there_is_looked_through_no_more() -> None:
    there = _Node()
    settle()
    later = _Node()
    seen = gc.get_objects()
    assert not any(one is there for one in seen)
    assert any(one is later for one in seen)


def test_cycles_that_come_later_are_still_freed() -> None:
    settle()
    node = _Node()
    seen = weakref.ref(node)
    del node
    gc.collect()
    assert seen() is None


def test_a_request_is_not_stopped_by_a_collection_of_its_own() -> None:
    before = gc.get_threshold()[0]
    settle()
    assert gc.get_threshold()[0] > 10 * before
