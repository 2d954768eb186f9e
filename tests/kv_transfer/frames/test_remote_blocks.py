"""Ranges of borrowed blocks, and the rule of a loan: a copy counts only while the loan lasts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.layout import KvLayout, LayerShape
from kv_transfer.errors import ChannelBroken, Withdrawn
from kv_transfer.frames.borrowed_blocks import BlockLender
from kv_transfer.frames.remote_blocks import RemoteBorrower, ranges_of
from tests.kv_transfer.rig import LAYOUT, make_cache, same

SHAPES = st.lists(st.builds(LayerShape, st.integers(1, 3), st.sampled_from([2, 4])), min_size=1)


class Reading:
    """A `ReadingChannel` of two caches in this process; `during` runs amid each read."""

    def __init__(self, source, target, lender):
        self.source, self.target, self.lender = source.memory, target.memory, lender
        self.remote_bytes = source.memory.numel()
        self.during = lambda: None

    def read(self, there, here, sizes, timeout_s):
        for number, (start, to, size) in enumerate(zip(there, here, sizes, strict=True)):
            if number == len(sizes) // 2:
                self.during()
            self.target[to : to + size] = self.source[start : start + size]

    def read_word(self, number, timeout_s):
        return int(self.lender.words[number])


def reading(source, target):
    lender = BlockLender(source)
    channel = Reading(source, target, lender)
    return lender, channel, RemoteBorrower(target, channel, 1.0)


@given(data=st.data(), shapes=SHAPES, block_size=st.integers(1, 3))
def test_the_ranges_hold_exactly_the_wanted_layers_of_the_blocks(data, shapes, block_size):
    layout = KvLayout(tuple(shapes), block_size, "float32", "m")
    source, target = make_cache(9, layout, seed=1), make_cache(12, layout)
    count = data.draw(st.integers(1, 9))
    theirs = data.draw(st.permutations(range(9)))[:count]
    mine = data.draw(st.permutations(range(12)))[:count]
    if data.draw(st.booleans()):  # in runs, as a pool gives them out
        theirs, mine = sorted(theirs), sorted(mine)
    first = data.draw(st.integers(0, len(shapes) - 1))
    layers = range(first, data.draw(st.integers(first + 1, len(shapes))))
    there, here, sizes = ranges_of(layout, layers, (theirs, 9), (mine, 12))
    for start, to, size in zip(there, here, sizes, strict=True):
        target.memory[to : to + size] = source.memory[start : start + size]
    for number, (sent, came) in enumerate(zip(source.layers, target.layers, strict=True)):
        assert torch.equal(came[:, mine], sent[:, theirs]) == (number in layers)
        rest = [block for block in range(13) if block not in mine or number not in layers]
        assert not came[:, rest].any()


def test_neighbours_on_both_sides_make_one_range():
    layout = KvLayout((LayerShape(1, 4),), 2, "float32", "m")
    there, here, sizes = ranges_of(layout, range(1), ([3, 4, 5, 7], 9), ([0, 1, 8, 9], 12))
    assert sizes.tolist() == [64, 32, 32] * 2
    assert here.tolist() == [0, 256, 288, 416, 672, 704]
    assert there.tolist() == [96, 160, 224, 416, 480, 544]
    assert there.dtype == here.dtype == np.int64


class Loan:
    def __init__(self, loan, blocks):
        self.loan, self.blocks, self.lasts = loan, blocks, True


@given(data=st.data())
def test_a_copy_counts_exactly_if_its_loan_lasts_until_it_is_checked(data):
    """Loans begin and end in any order, also amid a read, and their words are used again."""
    source, target = make_cache(16, seed=1), make_cache(16)
    lender, channel, borrower = reading(source, target)
    loans = []
    for _ in range(data.draw(st.integers(1, 12))):
        what = data.draw(st.sampled_from(["lend", "end", "read", "end amid a read"]))
        if what == "lend" or not loans:
            blocks = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=4, unique=True))
            loans.append(Loan(lender.lend(blocks, remote=True), blocks))
            continue
        one = data.draw(st.sampled_from(loans))

        def end(one=one):
            if one.lasts:
                one.lasts = False
                lender.end(one.loan)

        if what == "end":
            end()
            continue
        channel.during = end if what == "end amid a read" else lambda: None
        written = list(range(len(one.blocks)))
        assert borrower.takes(one.loan, len(one.blocks))
        borrower.copy(one.loan, written, range(len(written)), range(4))
        if one.lasts:
            borrower.check(one.loan)
            assert same(source, one.blocks, target, written)
        else:
            with pytest.raises(Withdrawn):
                borrower.check(one.loan)


def test_blocks_and_words_that_do_not_exist_and_another_order_are_not_taken():
    source, target = make_cache(20, seed=1), make_cache(30)
    lender, _, borrower = reading(source, target)
    loan = lender.lend([1, 19], remote=True)
    assert borrower.takes(loan, 2)
    assert not borrower.takes(loan, 1)
    assert not borrower.takes(type(loan)(loan.word, loan.number, (1, 20), loan.order), 2)
    assert not borrower.takes(type(loan)(10**6, loan.number, (1, 19), loan.order), 2)
    assert not borrower.takes(type(loan)(loan.word, loan.number, (1, 19), "pairs"), 2)
    target.formats[:] = ["pairs"] * len(LAYOUT.layers)
    assert not borrower.takes(loan, 2)


@pytest.mark.parametrize("size", [0, 1, 3328, 3329, 10_000])
def test_a_cache_of_another_layout_is_refused(size):
    source, target = make_cache(20), make_cache(30)
    channel = Reading(source, target, BlockLender(source))
    channel.remote_bytes = size
    with pytest.raises(ChannelBroken, match=f"{size} bytes"):
        RemoteBorrower(target, channel, 1.0)
