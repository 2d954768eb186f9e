"""KV that is lent: what only a receiver that copies out of the sender's blocks can get wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from engine.kv.shared_segments import WORDS, segment_of
from kv_transfer.errors import ChannelBroken, Withdrawn
from kv_transfer.frames.borrowed_blocks import BlockBorrower, BlockLender
from tests.kv_transfer.rig import LAYOUT, eventually, linked, make_cache, over, same

LENT = over("lent")


@pytest.fixture
def caches():
    """A sender's, that has numbers, and a receiver's of another size."""
    return make_cache(20, seed=1, lent=True), make_cache(30, lent=True)


def borrower_of(lender, source, target):
    return BlockBorrower(target, lender.place(), source.blocks)


def test_what_is_copied_is_what_was_lent(caches):
    source, target = caches
    lender = BlockLender(source)
    loan = lender.lend([7, 3, 5])
    borrower = borrower_of(lender, source, target)
    assert borrower.takes(loan, 3)
    written = [29, 0, 11]
    borrower.copy(loan, written, range(1, 3), range(1, 4))
    borrower.check(loan)
    for number, (theirs, mine) in enumerate(zip(source.layers, target.layers, strict=True)):
        came = torch.equal(mine[:, written[1:]], theirs[:, [3, 5]])
        assert came == (number > 0)
        assert not mine[:, [1, 2, 29]].any()
    borrower.copy(loan, written, range(3), range(4))
    assert same(source, [7, 3, 5], target, written)


def test_a_loan_that_has_ended_is_seen_also_where_its_word_is_lent_again(caches):
    source, target = caches
    lender = BlockLender(source)
    loan = lender.lend([1])
    borrower = borrower_of(lender, source, target)
    lender.end(loan)
    with pytest.raises(Withdrawn, match="taken the blocks back"):
        borrower.check(loan)
    again = lender.lend([1])
    assert again.word == loan.word
    borrower.check(again)
    with pytest.raises(Withdrawn):
        borrower.check(loan)


def test_no_more_is_lent_than_there_are_words(caches):
    source, _ = caches
    lender = BlockLender(source)
    loans = [lender.lend([1]) for _ in range(WORDS)]
    assert len({loan.word for loan in loans}) == WORDS
    assert lender.lend([1]) is None
    lender.end(loans[3])
    assert lender.lend([1]).word == loans[3].word


def test_only_what_is_in_pairs_is_lent_and_borrowed(caches):
    source, target = caches
    lender = BlockLender(source)
    loan = lender.lend([1])
    source.formats[2] = "plain"
    assert lender.lend([1]) is None
    borrower = borrower_of(lender, source, target)
    assert borrower.takes(loan, 1)
    target.formats[0] = "plain"
    assert not borrower.takes(loan, 1)


def test_a_loan_of_what_is_not_there_is_not_taken(caches):
    source, target = caches
    lender = BlockLender(source)
    borrower = borrower_of(lender, source, target)
    loan = lender.lend([1, 2])
    assert not borrower.takes(loan, 3)
    assert not borrower.takes(replace(loan, blocks=(1, 20)), 2)
    assert not borrower.takes(replace(loan, word=WORDS), 2)


def test_a_cache_of_another_size_or_none_is_not_mapped(caches):
    source, target = caches
    place = BlockLender(source).place()
    with pytest.raises(ChannelBroken, match="21 blocks"):
        BlockBorrower(target, place, source.blocks + 1)
    with pytest.raises(ChannelBroken, match="taken its buffer back"):
        BlockBorrower(target, place._replace(identity=place.identity ^ 1), source.blocks)
    with pytest.raises(ChannelBroken, match="shared memory of process"):
        BlockBorrower(target, place._replace(descriptor=9999), source.blocks)


def test_private_memory_is_not_lent(caches, monkeypatch):
    monkeypatch.setattr("engine.kv.memory.shared_tensor", refused)
    cache = make_cache(lent=True)
    assert segment_of(cache.memory) is None
    lender = BlockLender(cache)
    assert lender.place() is None
    assert lender.lend([1]) is None


def refused(size):
    raise OSError("no memfd")


async def test_nothing_of_it_goes_over_the_channel():
    async with linked(**LENT) as pair:
        await pair.move("t", [4, 9, 2], [8, 1, 40])
        (link,) = pair.sender._links._links.values()
        assert link._sequence == 0
        assert pair.sender.bytes_sent == pair.receiver.bytes_received > 0


async def test_it_goes_in_frames_where_it_is_not_in_pairs():
    async with linked(**LENT) as pair:
        pair.source.formats[:] = pair.target.formats[:] = ["plain"] * len(LAYOUT.layers)
        await pair.move("plain", [4, 9, 2], [8, 1, 40])
        (link,) = pair.sender._links._links.values()
        assert link._sequence > 0


async def test_words_come_back_however_it_ends():
    async with linked(**LENT) as pair:
        free = len(pair.sender._shared.lender._free)
        await pair.move("t", [4, 9, 2], [8, 1, 40])
        given_up = pair.offer("u", [1, 2])
        taking = pair.take("u", [3, 4], gate=asyncio.Event().wait)
        await asyncio.sleep(0.05)
        taking.cancel()
        given_up.cancel()
        await asyncio.gather(given_up, taking, return_exceptions=True)
        await eventually(pair.idle)
        assert len(pair.sender._shared.lender._free) == free == WORDS


async def test_blocks_that_are_taken_back_while_they_are_copied_fail_the_transfer(monkeypatch):
    """The sender's word comes later than its blocks change."""
    async with linked(**LENT) as pair:
        await pair.move("warm", [1], [1])
        lender = pair.sender._shared.lender
        copy = BlockBorrower.copy

        def copy_late(borrower, loan, *what):
            lender._segment.write_word(loan.word, 0)
            for layer in pair.source.layers:
                layer.fill_(-1.0)
            copy(borrower, loan, *what)

        monkeypatch.setattr(BlockBorrower, "copy", copy_late)
        sending, taking = pair.offer("t", [1, 2]), pair.take("t", [5, 6])
        with pytest.raises(Withdrawn, match="taken the blocks back"):
            await taking
        await asyncio.gather(sending, return_exceptions=True)
        await eventually(pair.idle)
