"""What protects a frame's bytes: the guard of its blocks, and the seal behind it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.frames.block_copies import CopyGuard
from kv_transfer.frames.checksum import (
    SEAL_BYTES,
    inspect,
    inspect_by_sum,
    seal,
    seal_by_sum,
)
from tests.kv_transfer.rig import loop_turns


async def test_a_guard_lets_copies_begin_until_it_is_shut():
    guard, made = CopyGuard(), []
    assert guard.copy(lambda: made.append(1))
    assert guard.shut().done()
    assert not guard.copy(lambda: made.append(2))
    assert guard.shut().done()
    assert made == [1]


async def test_shutting_a_guard_waits_for_the_copies_under_way():
    guard, inside, go_on = CopyGuard(), threading.Semaphore(0), threading.Event()

    def copy():
        inside.release()
        assert go_on.wait(10)

    with ThreadPoolExecutor(2) as threads:
        copies = [threads.submit(guard.copy, copy) for _ in range(2)]
        for _ in copies:
            assert await asyncio.to_thread(inside.acquire, timeout=10)
        shut = guard.shut()
        await loop_turns(5)
        assert not shut.done()
        assert not guard.copy(go_on.set)
        go_on.set()
        await asyncio.wait_for(shut, 10)
        assert all(copy.result() for copy in copies)


async def test_a_failed_copy_does_not_keep_the_guard_open():
    guard = CopyGuard()
    with pytest.raises(ZeroDivisionError):
        guard.copy(lambda: 1 // 0)
    assert guard.shut().done()


@given(st.binary(max_size=200), st.data())
def test_a_seal_detects_any_changed_bit(content, data):
    message = torch.frombuffer(bytearray(content + bytes(SEAL_BYTES)), dtype=torch.uint8)
    seal(message)
    assert inspect(message) == "sound"
    bit = data.draw(st.integers(0, 8 * message.numel() - 1))
    message[bit // 8] ^= 1 << bit % 8
    assert inspect(message) == "corrupted"


def test_a_void_message_is_recognised():
    message = torch.ones(100, dtype=torch.uint8)
    seal(message, void=True)
    assert inspect(message) == "void"


@given(st.binary(min_size=8, max_size=200), st.data())
def test_a_seal_by_sum_detects_any_changed_word(content, data):
    """As a device does it; here the memory is the host's."""
    whole = content[: len(content) // 8 * 8]
    message = torch.frombuffer(bytearray(whole + bytes(SEAL_BYTES)), dtype=torch.uint8)
    seal_by_sum(message, void=False)
    assert inspect_by_sum(message) == "sound"
    changed = data.draw(st.integers(0, len(whole) - 1))
    message[changed] ^= data.draw(st.integers(1, 255))
    assert inspect_by_sum(message) == "corrupted"
    seal_by_sum(message, void=True)
    assert inspect_by_sum(message) == "void"
