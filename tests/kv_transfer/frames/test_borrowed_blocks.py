"""Borrowed blocks: the faults that only a receiver that copies out of the sender's blocks has."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from engine.kv.shared_segments import WORDS, segment_of
from kv_transfer.errors import ChannelBroken, Withdrawn
from kv_transfer.frames.borrowed_blocks import BlockBorrower, BlockLender
from tests.kv_transfer.rig import LAYOUT, Admission, eventually, linked, make_cache, over, same

BORROWED = over("borrowed")


@pytest.fixture
def caches():
    """A sender's cache with numbers, and a receiver's cache of another size."""
    return make_cache(20, seed=1, borrowed=True), make_cache(30, borrowed=True)


def borrower_of(lender, source, target):
    return BlockBorrower(target, lender.extent(), source.blocks)


def test_the_copies_equal_the_borrowed_blocks(caches):
    source, target = caches
    lender = BlockLender(source)
    borrowed = lender.lend([7, 3, 5])
    borrower = borrower_of(lender, source, target)
    assert borrower.takes(borrowed, 3)
    written = [29, 0, 11]
    borrower.copy(borrowed, written, range(1, 3), range(1, 4))
    borrower.check(borrowed)
    for number, (theirs, mine) in enumerate(zip(source.layers, target.layers, strict=True)):
        came = torch.equal(mine[:, written[1:]], theirs[:, [3, 5]])
        assert came == (number > 0)
        assert not mine[:, [1, 2, 29]].any()
    borrower.copy(borrowed, written, range(3), range(4))
    assert same(source, [7, 3, 5], target, written)


def test_a_borrower_sees_that_blocks_were_taken_back_even_if_their_word_is_used_again(caches):
    source, target = caches
    lender = BlockLender(source)
    borrowed = lender.lend([1])
    borrower = borrower_of(lender, source, target)
    lender.end(borrowed)
    with pytest.raises(Withdrawn, match="taken the blocks back"):
        borrower.check(borrowed)
    again = lender.lend([1])
    assert again.word == borrowed.word
    borrower.check(again)
    with pytest.raises(Withdrawn):
        borrower.check(borrowed)


def test_a_lender_lends_to_at_most_as_many_transfers_as_there_are_words(caches):
    source, _ = caches
    lender = BlockLender(source)
    all_borrowed = [lender.lend([1]) for _ in range(WORDS)]
    assert len({borrowed.word for borrowed in all_borrowed}) == WORDS
    assert lender.lend([1]) is None
    lender.end(all_borrowed[3])
    assert lender.lend([1]).word == all_borrowed[3].word


def test_only_caches_in_pairs_lend_and_borrow(caches):
    source, target = caches
    lender = BlockLender(source)
    borrowed = lender.lend([1])
    source.formats[2] = "plain"
    assert lender.lend([1]) is None
    borrower = borrower_of(lender, source, target)
    assert borrower.takes(borrowed, 1)
    target.formats[0] = "plain"
    assert not borrower.takes(borrowed, 1)


def test_a_borrower_refuses_blocks_and_words_that_do_not_exist(caches):
    source, target = caches
    lender = BlockLender(source)
    borrower = borrower_of(lender, source, target)
    borrowed = lender.lend([1, 2])
    assert not borrower.takes(borrowed, 3)
    assert not borrower.takes(replace(borrowed, blocks=(1, 20)), 2)
    assert not borrower.takes(replace(borrowed, word=WORDS), 2)


def test_a_cache_of_another_size_is_not_mapped(caches):
    source, target = caches
    extent = BlockLender(source).extent()
    with pytest.raises(ChannelBroken, match="21 blocks"):
        BlockBorrower(target, extent, source.blocks + 1)
    with pytest.raises(ChannelBroken, match="taken its buffer back"):
        BlockBorrower(target, extent._replace(identity=extent.identity ^ 1), source.blocks)
    with pytest.raises(ChannelBroken, match="shared memory of process"):
        BlockBorrower(target, extent._replace(descriptor=9999), source.blocks)


def test_a_cache_in_private_memory_does_not_lend(caches, monkeypatch):
    monkeypatch.setattr("engine.kv.memory.shared_tensor", refused)
    cache = make_cache(borrowed=True)
    assert segment_of(cache.memory) is None
    lender = BlockLender(cache)
    assert lender.extent() is None
    assert lender.lend([1]) is None


def refused(size):
    raise OSError("no memfd")


async def test_borrowed_blocks_do_not_go_over_the_channel():
    async with linked(**BORROWED) as pair:
        await pair.move("t", [4, 9, 2], [8, 1, 40])
        assert pair.sender.counters.frames_announced == 0
        assert pair.sender.bytes_moved == pair.receiver.bytes_moved > 0


async def test_kv_goes_in_frames_if_the_caches_are_not_in_pairs():
    async with linked(**BORROWED) as pair:
        pair.source.formats[:] = pair.target.formats[:] = ["plain"] * len(LAYOUT.layers)
        await pair.move("plain", [4, 9, 2], [8, 1, 40])
        assert pair.sender.counters.frames_announced > 0


async def test_every_ended_transfer_gives_its_word_back():
    async with linked(**BORROWED) as pair:
        lender, admission = pair.sender._shared.lender, Admission()
        await pair.move("t", [4, 9, 2], [8, 1, 40])
        given_up = pair.offer("u", [1, 2])
        taking = pair.take("u", [3, 4], before_admit=admission)
        await admission.asked.wait()
        assert lender.free_words == WORDS - 1
        taking.cancel()
        given_up.cancel()
        await asyncio.gather(given_up, taking, return_exceptions=True)
        await eventually(pair.idle)
        assert lender.free_words == WORDS


async def test_a_transfer_fails_if_its_blocks_are_taken_back_during_the_copy(monkeypatch):
    """The sender clears its word, and changes the blocks before the copy."""
    async with linked(**BORROWED) as pair:
        await pair.move("warm", [1], [1])
        segment, _ = segment_of(pair.source.memory)
        copy = BlockBorrower.copy

        def copy_late(borrower, borrowed, *what):
            segment.write_word(borrowed.word, 0)
            for layer in pair.source.layers:
                layer.fill_(-1.0)
            copy(borrower, borrowed, *what)

        monkeypatch.setattr(BlockBorrower, "copy", copy_late)
        sending, taking = pair.offer("t", [1, 2]), pair.take("t", [5, 6])
        with pytest.raises(Withdrawn, match="taken the blocks back"):
            await taking
        await asyncio.gather(sending, return_exceptions=True)
        await eventually(pair.idle)
