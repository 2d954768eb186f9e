"""Both ends of a channel are whole once they are made; a failed join leaves nothing open."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.nixl import channel
from kv_transfer.transports.nixl.channel_end import ChannelEnd
from kv_transfer.transports.transport import ChannelSpec, OwnMemory
from tests.kv_transfer.transports.nixl.stand_in import StandIn

CPU = torch.device("cpu")


class Store:
    """What both ends say, in this process."""

    def __init__(self, timeout_s=30.0):
        self._values = {}
        self._changed = threading.Condition()
        self._timeout_s = timeout_s

    def set(self, key, value):
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, self._timeout_s):
                raise RuntimeError(f"no {key}")
            return self._values[key].encode()


@pytest.fixture(autouse=True)
def world(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setattr(channel, "bindings", lambda: stand_in)
    return stand_in


def memory(words=8, fill=0):
    return OwnMemory(
        torch.full((64,), fill, dtype=torch.uint8), torch.arange(words, dtype=torch.int64) * 11
    )


def spec(rank, store, own, timeout_s=5.0):
    return ChannelSpec("nixl", "a", rank, "127.0.0.1", CPU, timeout_s, store, own)


def joined(*owns):
    """Both ends, or the error of each."""
    store = Store()

    def join(rank):
        try:
            return channel.NixlChannel(spec(rank, store, owns[rank], 30.0))
        except ChannelBroken as error:
            return error.message

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(join, (0, 1)))


def test_a_receiver_reads_what_its_sender_lends(world):
    lent, own = memory(fill=7), memory()
    sender, receiver = joined(lent, own)
    assert (sender.remote_bytes, receiver.remote_bytes) == (0, 64)
    at, to, size = (np.array([number]) for number in (8, 16, 4))
    receiver.read(at, to, size, 1.0)
    assert own.cache.tolist() == [0] * 16 + [7] * 4 + [0] * 44
    assert receiver.read_word(3, 1.0) == 33
    with pytest.raises(ChannelBroken, match="lends no memory"):
        sender.read_word(0, 1.0)
    for end in (sender, receiver):
        end.close()
    assert not world.agents
    with pytest.raises(ChannelBroken, match="is closed"):
        receiver.read_word(0, 1.0)


def test_a_join_without_a_peer_leaves_nothing_open(world):
    with pytest.raises(ChannelBroken, match="nixl join: no 1 is here"):
        channel.NixlChannel(spec(0, Store(0.05), memory()))
    assert gc.collect() >= 0 and not world.agents


def test_a_join_that_fails_late_leaves_nothing_open(world):
    sender, failure = joined(memory(words=8), memory(words=9))
    assert failure == "nixl join: 8 words there, 9 here"
    sender.close()
    assert gc.collect() >= 0 and not world.agents


def test_the_first_reason_of_an_end_stays():
    end = ChannelEnd()
    end.check()
    end.aborted.set()
    for _ in range(2):
        with pytest.raises(ChannelBroken, match="was aborted"):
            end.check()
        end.set("later")
