"""`tandem top`: what it shows, as plain text where it is piped."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import pytest

from cluster.cli import top
from cluster.cli.top_view import sections_of
from cluster.client import admin_client
from cluster.client.admin_client import ListedRequests
from cluster.router.rows.endpoint_figures import figures_of
from cluster.telemetry.requests.row import brief
from engine.errors import DeadlineExceeded, Unavailable
from protos import router_pb2
from tests.cluster.cli.fake_router import Router, run
from tests.cluster.cli.test_requests import REFUSED, ROW


def replica(name, role, used, total, **more):
    blocks = router_pb2.BlockCounts(total=total, used=used, cached=total // 4)
    return router_pb2.ReplicaStatus(id=name, role=role, healthy=True, blocks=blocks, **more)


STATUS = router_pb2.StatusResponse(
    replicas=[
        replica("decode-0", "decode", 50, 100, running=3),
        replica("decode-1", "decode", 100, 100, running=5, waiting=2, leaving=True),
        replica("router-0", "router", 0, 0, running=8),
    ],
    missing=["prefill"],
)


def listed(rows=(), rises=(), silent=None, figures=(), tenants=(), observed_s=0.0):
    known = list(rows), list(rises), silent or {}, list(figures), list(tenants)
    return ListedRequests(*known, observed_s)


def sections(rows=(), since_s=60.0, status=STATUS, **more):
    found = sections_of(status, listed(rows, **more), since_s)
    return {one.title.split(",")[0].split(" ")[0]: one for one in found}


def test_a_pool_is_the_sum_of_its_replicas():
    assert sections()["pools"].rows == [
        ("decode", "1 of 2", "2", "8", "75%"),
        ("router", "1 of 1", "0", "8", "-"),
        ("prefill: replicas are missing", "-", "-", "-", "-"),
    ]
    assert [row[:3] for row in sections()["replicas"].rows] == [
        ("decode", "decode-0", "ok"),
        ("decode", "decode-1", "leaving"),
        ("router", "router-0", "ok"),
    ]


def test_endpoints_and_the_slowest_come_from_rows():
    found = sections([brief(ROW), brief(REFUSED)], 4, figures=figures_of([ROW, REFUSED]))
    assert found["endpoints"].rows == [
        ("chat", "0.5", "1", "0", "610 ms", "610 ms", "50.0 ms", "50.0 ms"),
    ]
    (slowest,) = found["slowest"].rows
    assert slowest == (
        "r-1",
        "chat",
        "acme",
        "prefill-0",
        "kv_blocks",
        "610 ms",
        "100 ms",
        "300 ms",
        "200 ms",
    )


def test_replicas_have_their_times_and_a_slow_one_says_so():
    replicas = [
        replica("prefill-0", "prefill", 1, 100, prefill_s=0.1234),
        replica("prefill-1", "prefill", 1, 100, prefill_s=1.25, slow="slow: 10x the others\x1b"),
        replica("decode-0", "decode", 1, 100, step_s=0.0213),
    ]
    found = sections(status=router_pb2.StatusResponse(replicas=replicas))["replicas"]
    assert found.columns[-2:] == ("1k prompt tokens", "step")
    assert [(row[1], row[2], *row[-2:]) for row in found.rows] == [
        ("decode-0", "ok", "-", "21.3 ms"),
        ("prefill-0", "ok", "123 ms", "-"),
        ("prefill-1", "slow: 10x the others\N{REPLACEMENT CHARACTER}", "1.25 s", "-"),
    ]
    assert max(map(len, top.as_text([found]).splitlines())) <= 120


def test_tenants_have_their_share_and_the_rest_is_counted():
    one = {"requests": 40, "refused": 3, "tokens": 900, "running": 2, "waiting": 1}
    tenants = [
        router_pb2.TenantFigures(tenant="acme\x1b", cap="2 of 16 running", **one),
        router_pb2.TenantFigures(others=31, requests=7, tokens=300),
    ]
    found = sections(since_s=60.0, tenants=tenants)["tenants"]
    assert found.title == "tenants, last 60 s"
    assert found.rows == [
        ("acme\N{REPLACEMENT CHARACTER}", "40", "3", "2", "1", "75%", "15", "2 of 16 running"),
        ("31 others", "7", "0", "0", "0", "25%", "5", ""),
    ]
    assert max(map(len, top.as_text([found]).splitlines())) <= 80


def test_rates_of_young_routers_are_over_the_time_that_these_have_seen():
    tenants = [router_pb2.TenantFigures(tenant="acme", requests=40, tokens=900)]
    figures = [router_pb2.EndpointFigures(endpoint="chat", requests=40)]
    told = {"figures": figures, "tenants": tenants}
    young, older = (sections(since_s=300.0, observed_s=age_s, **told) for age_s in (20.0, 0.0))
    assert [one["endpoints"].rows[0][1] for one in (young, older)] == ["2.0", "0.1"]
    assert [one["tenants"].rows[0][-2] for one in (young, older)] == ["45", "3"]
    assert [one["tenants"].title for one in (young, older)] == [
        "tenants, last 20 s",
        "tenants, last 5 min",
    ]


def test_a_rise_is_told_in_words_and_by_question():
    facts = {"stage": "prefill itself (88%)", "pool": "prefill", "replica": "p-0", "tenant": "none"}
    words = "TTFT of chat has been high: " + 10 * "a word and another one, "
    rise = {"endpoint": "chat", "begin": 0.0, "end": 60.0, "words": words, "facts": facts}
    rises = [rise, rise | {"endpoint": "score\x1b"}]
    first, *others = sections_of(STATUS, listed(rises=rises), 60.0)
    assert [row[0] for row in first.rows if row[0]] == ["chat", "score\N{REPLACEMENT CHARACTER}"]
    half = first.rows[: len(first.rows) // 2]
    assert [row[1] for row in half if row[1]] == ["cause", "when", *facts]
    assert " ".join(row[2] for row in half).startswith(words.strip())
    assert ("", "replica", "p-0") in half
    assert len(others) == 5


def test_what_to_do_about_a_rise_is_told_with_its_page_in_one_piece():
    page = "docs/howto/answer-an-alert.md#tandemfirsttokensnearbudget-tandemfirsttokenslate"
    told = {"advice": "Cap acme by `tenants.acme.max_concurrent`.", "runbook": page}
    rise = {"endpoint": "chat", "begin": 0.0, "end": 60.0, "words": "TTFT rose.", "facts": {}}
    first, *_ = sections_of(STATUS, listed(rises=[rise | told]), 60.0)
    assert [row[1:] for row in first.rows[1:3]] == [
        ("what to do", told["advice"]),
        ("guide", page),
    ]


def test_without_a_rise_it_says_so():
    first, *_ = sections_of(STATUS, listed(), 60.0)
    assert [row[2] for row in first.rows] == [
        "TTFT did not rise at any endpoint in the last 15 min."
    ]


def test_a_silent_router_is_named_and_slow_requests_have_their_router():
    rows = [brief(ROW) | {"router": "router-1"}]
    silent = {"router-2": "it did not answer for 1 s"}
    _, first, *others = sections_of(STATUS, listed(rows, silent=silent), 60.0)
    assert first.rows == [("router-2", "it did not answer for 1 s")]
    assert (others[-1].columns[0], others[-1].rows[0][0]) == ("router", "router-1")


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "1e9", "nan"])
def test_a_wrong_interval_is_refused(router: Router, capsys, wrong):
    assert run(capsys, "top", "--address", router.address, f"--every={wrong}")[0] == 2


@pytest.mark.parametrize("wrong", ["0", "0.0m"])
def test_no_time_at_all_is_refused(router: Router, capsys, wrong):
    code, _, error = run(capsys, "top", "--address", router.address, f"--since={wrong}")
    assert code == 2 and "must be more than 0 s" in error


def test_piped_it_is_one_page_without_colours(router: Router, capsys):
    router.admin.rows = [json.dumps(brief(ROW)), json.dumps(brief(REFUSED))]
    code, out, _ = run(capsys, "top", "--address", router.address, "--since", "2m")
    assert code == 0 and "\x1b" not in out
    assert "ENDPOINTS, LAST 120 S" in out and "prefill-0" in out
    assert router.admin.wanted[0].since_s == 120
    assert router.admin.wanted[0].figures and router.admin.wanted[0].slowest


@asynccontextmanager
async def shared_port(router, frozen):
    """A port whose first so many connections reach a router that is frozen, and others `router`."""
    came, writers, handlers = [], [], []

    async def pipe(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)

    async def serve(reader, writer):
        handlers.append(asyncio.current_task())
        came.append(writer)
        writers.append(writer)
        if len(came) > frozen:
            there = await asyncio.open_connection(*router.address.split(":"))
            writers.append(there[1])
            await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()  # first, because gRPC connects again where a connection ends
        await asyncio.sleep(0)
        for writer in writers:
            writer.close()
        await asyncio.gather(*handlers, *(one.wait_closed() for one in writers))


async def test_a_frozen_router_at_a_shared_port_delays_a_look_by_one_more_question(router: Router):
    async with shared_port(router, frozen=1) as address, asyncio.timeout(4.5):
        assert (await admin_client.fetch_status(address, "key")).replicas


async def test_the_last_question_leaves_the_second_that_an_answer_takes(router: Router):
    """The first question ends after 5 s, and a router waits for a frozen one for 1 s."""
    async with shared_port(router, frozen=2) as address, asyncio.timeout(4.4):
        assert (await admin_client.fetch_status(address, "key")).replicas


async def test_it_goes_on_while_a_router_does_not_answer():
    looks = [[], Unavailable("gone"), DeadlineExceeded("late"), KeyError("the end of the test")]

    async def look():
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    with pytest.raises(KeyError):
        await top.live(look, 0.0)
    assert not looks


def test_in_a_terminal_it_goes_on_until_it_is_ended(router: Router):
    router.admin.rows = [json.dumps(brief(ROW))]
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "cluster.cli.main", "top", "--address", router.address]
    environment = os.environ | {"COLUMNS": "120", "LINES": "50", "TERM": "xterm"}
    shown = subprocess.Popen([*command, "--every", "0.5"], stdout=terminal, env=environment)
    try:
        deadline = time.monotonic() + 60
        while len(router.admin.wanted) < 3 and time.monotonic() < deadline:
            if select.select([main], [], [], 0.1)[0]:
                os.read(main, 1 << 16)
        assert len(router.admin.wanted) >= 3
        shown.send_signal(2)
        assert shown.wait(60) == 130
    finally:
        shown.kill()
        shown.wait()
        os.close(main)
        os.close(terminal)
