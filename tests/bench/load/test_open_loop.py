"""The open loop, against a small server that answers, refuses, or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest

from bench.load.arrivals import Arrival, Load
from bench.load.client import Target
from bench.load.open_loop import LoadProgress, OpenLoop, Rules, show
from bench.load.request_outcome import read

_OK = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_REFUSED = (
    b"HTTP/1.1 429 No\r\nretry-after-ms: 5\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
)


def _chunk(document):
    data = f"data: {json.dumps(document)}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class RefusingServer:
    """Refuses the first `refusals` of each prompt, and keeps what it was asked.

    With `together` it answers nobody until that many requests are open at once.
    """

    def __init__(self, refusals=0, hang=False, together=1):
        self.refusals, self.hang, self.together = refusals, hang, together
        self.asked = []
        self.open = 0
        self.all_here = asyncio.Event()

    async def serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        prompt = json.loads(await reader.readexactly(size))["prompt"]
        self.asked.append(prompt)
        self.open += 1
        if self.open == self.together:
            self.all_here.set()
        if self.hang:
            with contextlib.suppress(ConnectionError):
                await reader.read()
        elif self.asked.count(prompt) <= self.refusals:
            writer.write(_REFUSED)
        else:
            await self.all_here.wait()
            choice = {"choices": [{"text": " w3", "finish_reason": "length"}]}
            writer.write(_OK + _chunk(choice) + b"0\r\n\r\n")
        self.open -= 1
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _run(server, rules, times=(0.0, 0.0, 0.01)):
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        target = Target.local(listening.sockets[0].getsockname()[1])
        arrivals = tuple(Arrival(at_s, "calm", 1, 1) for at_s in times)
        load = Load("test", 0, arrivals, (("calm", 0.0, 0.1),))
        requests = [target.post({"prompt": index}) for index in range(len(times))]
        loop = OpenLoop(target, load, requests, rules, LoadProgress(len(times)))
        tries = await loop.run()
    progress = loop.progress
    assert progress.sent == len(times) and progress.in_flight == 0
    assert progress.sent + progress.returned == progress.ended == len(tries)
    return [read(tried, arrivals[tried.index], loop.zero) for tried in tries]


async def test_nothing_waits_for_an_answer_and_none_is_sent_early():
    server = RefusingServer(together=3)
    outcomes = await _run(server, Rules(deadline_s=10))
    assert sorted(one.index for one in outcomes) == [0, 1, 2]
    assert all(one.complete for one in outcomes)
    assert all(one.asked_s >= one.due_s for one in outcomes)
    assert server.all_here.is_set()


@pytest.mark.parametrize(("returns", "answered"), [(0, 0), (1, 0), (2, 3)])
async def test_the_refused_come_back_when_told_and_as_often_as_allowed(returns, answered):
    server = RefusingServer(refusals=2)
    outcomes = await _run(server, Rules(returns=returns))
    assert sum(one.complete for one in outcomes) == answered
    assert len(outcomes) == 3 * (returns + 1)
    for one in outcomes:
        assert one.number <= returns
        earlier = [other for other in outcomes if other.index == one.index]
        if one.number:
            before = earlier[one.number - 1]
            assert before.refused
            assert one.due_s == pytest.approx(before.ended_s + 0.005)


async def test_a_time_too_long_to_wait_is_not_waited_for():
    outcomes = await _run(RefusingServer(refusals=9), Rules(returns=3, longest_wait_s=0.001))
    assert len(outcomes) == 3


async def test_a_hanging_request_ends_at_its_deadline():
    outcomes = await _run(RefusingServer(hang=True), Rules(deadline_s=0.1))
    assert [one.error for one in outcomes] == ["no end within 0.1 s"] * 3


async def test_a_closed_port_is_an_outcome_too():
    arrival = Arrival(0.0, "calm", 1, 1)
    load = Load("test", 0, (arrival,), (("calm", 0.0, 0.1),))
    target = Target.local(1)
    [tried] = await OpenLoop(target, load, [b"x"], Rules(), LoadProgress(1)).run()
    assert "Connect" in tried.error
    assert not read(tried, arrival, 0.0).complete


async def test_progress_is_shown_until_cancelled():
    """It has the seconds of the load, and no more than all of them."""
    told = asyncio.Queue()
    load = Load("test", 0, (), (("calm", 0.0, 0.1),))
    loop = OpenLoop(Target.local(1), load, [], Rules(), LoadProgress(5, 3, 1, ended=2))
    task = asyncio.create_task(show(loop, lambda *said: told.put_nowait(said), 0.001))
    assert await told.get() == (0.0, "3 of 5 sent, 2 in flight")
    loop.zero = time.perf_counter() - 60
    await told.get()
    assert await told.get() == (0.1, "3 of 5 sent, 2 in flight")
    task.cancel()


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("http://host:81", ("host", 81, "", False)),
        ("http://host/v1/", ("host", 80, "", False)),
        ("https://host/under/v1", ("host", 443, "/under", True)),
    ],
)
def test_targets_are_read_from_addresses(url, want):
    target = Target.at(url, "secret")
    assert (target.host, target.port, target.base, target.tls is not None) == want
    assert b"Authorization: Bearer secret\r\n" in target.post({})


@pytest.mark.parametrize("url", ["host:80", "ftp://host", "http://"])
def test_an_invalid_address_is_refused(url):
    with pytest.raises(ValueError, match="address"):
        Target.at(url)
