"""Values of a channel's two ends, carried by their link instead of a store with a port."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kv_transfer.transports.rendezvous import Rendezvous
from tests.kv_transfer.rig import linked, with_transport


def two_ends(timeout_s=5.0):
    ends: list[Rendezvous] = []
    ends.append(Rendezvous(lambda key, value: ends[1].take(key, value), timeout_s))
    ends.append(Rendezvous(lambda key, value: ends[0].take(key, value), timeout_s))
    return ends


def test_either_end_reads_what_the_other_set():
    one, other = two_ends()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(one.get, "b")
        other.set("b", "2")
        assert waiting.result(5) == b"2"
    one.set("a", b"1")
    assert (one.get("a"), other.get("a")) == (b"1", b"1")
    assert other.check(["a", "b"]) and not other.check(["a", "c"])


def test_a_missing_value_ends_the_wait_in_time():
    one, _ = two_ends(timeout_s=0.05)
    with pytest.raises(RuntimeError, match=r"c: not set within 0.05 s"):
        one.get("c")


def test_the_end_of_the_link_ends_a_wait():
    one, _ = two_ends(timeout_s=60.0)
    began = time.monotonic()
    timer = threading.Timer(0.05, one.close)
    timer.start()
    with pytest.raises(RuntimeError, match="the link ended"):
        one.get("c")
    assert time.monotonic() - began < 30
    timer.join()


def test_the_other_end_cannot_fill_the_memory():
    one, _ = two_ends()
    assert not one.take("large", bytes(1 << 20))
    taken = [one.take(str(number), b"x") for number in range(1000)]
    assert 0 < sum(taken) < 100 and not taken[-1]


def listening_ports() -> set[str]:
    """The local addresses on which this process listens by TCP."""
    tables = [Path("/proc/self/net", name).read_text() for name in ("tcp", "tcp6")]
    lines = [line for table in tables for line in table.splitlines()[1:]]
    inodes = {link.readlink().name for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    fields = (line.split() for line in lines)
    return {f[1] for f in fields if f[3] == "0A" and f"socket:[{f[9]}]" in inodes}


@pytest.mark.parametrize("transport", ["shared_memory", "loopback"])
async def test_a_link_on_one_host_listens_on_no_port(transport):
    """The sender's own server listens before and after; a store of the link would be one more."""
    others = listening_ports()
    async with linked(with_transport(transport)) as pair:
        before = listening_ports()
        await pair.move("t", [1], [2])
        assert not listening_ports() - before
        assert len(before - others) == 1
