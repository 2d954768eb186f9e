"""Weights kept one behind the other: the same numbers, each in a place of its own."""

from __future__ import annotations

import mmap
from itertools import pairwise

import pytest
import torch

from engine.cpu.huge_pages import HugePages

LINE, PAGE = 64, 2 << 20


@pytest.fixture(params=["granted", "refused"])
def pages(request, monkeypatch):
    if request.param == "refused":
        # Not every kernel knows of them.
        monkeypatch.setattr("mmap.MADV_HUGEPAGE", -1)
    return HugePages()


def test_kept_tensors_equal_the_given_ones(pages):
    shapes = [(3,), (33, 64), (1,), (40 << 20,), (7, 5, 3), (10 << 20,), (12 << 20,)]
    given = [torch.randint(-9, 9, shape, dtype=torch.int16).bfloat16() for shape in shapes]
    kept = [pages.keep(each) for each in given]
    spans = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in kept)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    assert all(each.data_ptr() % LINE == 0 for each in kept)
    for one, other in zip(given, kept, strict=True):
        assert one.data_ptr() != other.data_ptr()
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_they_begin_with_a_page_and_small_ones_share_it(pages):
    first, second = (pages.keep(torch.ones(100)) for _ in range(2))
    assert first.data_ptr() % PAGE == 0
    assert second.data_ptr() == first.data_ptr() + 7 * LINE
    assert second.data_ptr() % mmap.PAGESIZE


def test_the_memory_is_given_back_with_the_last_of_them():
    pages = HugePages()
    kept = pages.keep(torch.ones(1000))
    del pages
    assert kept.sum() == 1000
