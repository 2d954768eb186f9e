"""What guards a frame's bytes: the gate before its blocks, and the seal behind it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.frames import checksum
from kv_transfer.frames.block_copies import CopyGuard
from kv_transfer.frames.checksum import SEAL_BYTES, inspect, seal


async def test_a_gate_lets_copies_through_until_it_is_shut():
    gate, made = CopyGuard(), []
    assert gate.copy(lambda: made.append(1))
    assert gate.shut().done()
    assert not gate.copy(lambda: made.append(2))
    assert gate.shut().done()
    assert made == [1]


async def test_who_shuts_a_gate_waits_for_the_copies_inside():
    gate, inside, go_on = CopyGuard(), threading.Semaphore(0), threading.Event()

    def copy():
        inside.release()
        assert go_on.wait(10)

    with ThreadPoolExecutor(2) as threads:
        copies = [threads.submit(gate.copy, copy) for _ in range(2)]
        for _ in copies:
            assert await asyncio.to_thread(inside.acquire, timeout=10)
        shut = gate.shut()
        await asyncio.sleep(0.02)
        assert not shut.done()
        assert not gate.copy(go_on.set)
        go_on.set()
        await asyncio.wait_for(shut, 10)
        assert all(copy.result() for copy in copies)


async def test_a_copy_that_fails_leaves_the_gate():
    gate = CopyGuard()
    with pytest.raises(ZeroDivisionError):
        gate.copy(lambda: 1 // 0)
    assert gate.shut().done()


@given(st.binary(max_size=200), st.data())
def test_a_seal_tells_any_changed_bit(content, data):
    message = torch.frombuffer(bytearray(content + bytes(SEAL_BYTES)), dtype=torch.uint8)
    seal(message)
    assert inspect(message) == "sound"
    bit = data.draw(st.integers(0, 8 * message.numel() - 1))
    message[bit // 8] ^= 1 << bit % 8
    assert inspect(message) == "corrupted"


def test_a_void_message_is_not_sound():
    message = torch.ones(100, dtype=torch.uint8)
    seal(message, void=True)
    assert inspect(message) == "void"


@given(st.binary(min_size=8, max_size=200), st.data())
def test_a_seal_by_sums_tells_any_changed_word(content, data):
    """As a device does it; here the memory is the host's."""
    whole = content[: len(content) // 8 * 8]
    message = torch.frombuffer(bytearray(whole + bytes(SEAL_BYTES)), dtype=torch.uint8)
    checksum._seal_there(message, void=False)
    of, kind, found = checksum._read_there(message)
    assert (of, kind) == (found, checksum._GATHERED)
    changed = data.draw(st.integers(0, len(whole) - 1))
    message[changed] ^= data.draw(st.integers(1, 255))
    of, _, found = checksum._read_there(message)
    assert of != found
    checksum._seal_there(message, void=True)
    assert checksum._read_there(message)[1] == checksum._VOID
