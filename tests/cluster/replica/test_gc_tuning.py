"""The garbage collector of a process that serves."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from cluster.replica.gc_tuning import settle


class _Node:
    """Something that can be in a cycle, and be asked whether it is gone."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    settle()
    gc.set_threshold(*before)


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


def test_what_a_step_of_many_streams_holds_begins_no_collection() -> None:
    settle()
    begun: list[str] = []
    gc.callbacks.append(lambda phase, _: begun.append(phase))
    try:
        for _ in range(20):
            held = [[number] for number in range(4000)]
            del held
    finally:
        gc.callbacks.pop()
    assert not begun
