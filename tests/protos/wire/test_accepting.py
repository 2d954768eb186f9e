"""Connections are accepted until the end, also after a time in which none could be."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

import pytest

from protos.wire import accepting
from protos.wire.accepting import accept_all
from tests.eventually import eventually


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        yield sock


async def test_after_a_lack_of_files_it_accepts_again_and_logs_once(listening, monkeypatch, caplog):
    monkeypatch.setattr(accepting, "_AGAIN_S", 0.001)
    fails, rooms, taken = [True, True, False, True], [], []

    class Scarce:
        """Each connection that is accepted uses up the files again."""

        fileno = listening.fileno

        def accept(self):
            if fails and fails.pop(0):
                raise OSError(errno.EMFILE, "too many open files")
            return listening.accept()

    caplog.set_level(logging.WARNING)
    task = asyncio.create_task(
        accept_all(Scarce(), lambda *one: taken.append(one), lambda: rooms.append(1))
    )
    dialled = [socket.create_connection(listening.getsockname()) for _ in range(2)]
    await eventually(lambda: len(taken) == 2)
    assert len(rooms) == 3
    assert [record.message for record in caplog.records] == ["no connection can be accepted"]
    names = [f"127.0.0.1:{one.getsockname()[1]}" for one in dialled]
    assert [peer for _, peer in taken] == names
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for one in (*dialled, *(sock for sock, _ in taken)):
        one.close()


@pytest.mark.parametrize("turns", range(6))
async def test_no_connection_is_lost_where_it_ends(listening, turns):
    """However the end meets a connection, it is taken or waits for the next server."""
    taken = []
    task = asyncio.create_task(accept_all(listening, lambda *one: taken.append(one), lambda: None))
    await asyncio.sleep(0.01)
    with socket.create_connection(listening.getsockname()):
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        sock, _ = taken[0] if taken else listening.accept()
        sock.close()
