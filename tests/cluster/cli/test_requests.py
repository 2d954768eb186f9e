"""`tandem requests` and `tandem explain`: the table, the waterfall, and the words beside it."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, replace

import pytest

from cluster.cli.requests import queue_waits
from cluster.telemetry.requests.behind import Blocker
from cluster.telemetry.requests.row import ChoiceRow, RequestRow, brief, whole
from cluster.telemetry.requests.stages import FailoverSpan
from tests.cluster.cli.fake_router import Router, run

CHOICE = ChoiceRow(
    *(0, "handed_over", "prefill-0", "decode-0"),
    completion_tokens=40,
    predicted_ttft_s=0.5,
    admitted_s=0.1,
    sent_s=0.1,
    queue_s=0.4,
    prefill_s=0.2,
    first_flush_s=0.01,
    ttft_s=0.61,
    ttlt_s=2.0,
    offered_s=0.63,
    decode_admitted_s=0.69,
    transfer_begin_s=0.69,
    transfer_end_s=0.71,
    decode_admission_s=0.06,
    decode_waited_for="slots",
    transfer_exposed_s=0.02,
    transfer_bytes=2_500_000,
    decode_s=0.5,
    decoded_s=2.0,
    itl_p50_s=0.03,
    itl_p95_s=0.05,
    longest_stall_s=0.2,
    mean_batch=3.5,
    straggler_share=0.25,
    failovers=1,
    failover_spans=(FailoverSpan(0.8, 1.5, "decode-9"),),
    failover_pause_s=0.7,
    preemptions=2,
    recomputed_tokens=99,
)
ROW = RequestRow(
    *("r-1", "chat", "3f9a1c02", "ok", "acme", "interactive"),
    received_at=1_700_000_000.0,
    total_s=2.01,
    waited_for="kv_blocks",
    queued_before=3,
    prompt_tokens=812,
    completion_tokens=40,
    cost=0.00125,
    choices=(CHOICE,),
)
REFUSED = RequestRow(
    *("r-2", "chat", "3f9a1c02", "Refused", "other\x1b[31m"),
    received_at=1_700_000_001.0,
    total_s=0.02,
    reason="no capacity now",
    refused_for="ttft",
    waited_for="kv_blocks",
    queued_before=1,
    decided_s=0.01,
)


def test_requests_are_a_table_or_json(capsys: pytest.CaptureFixture[str], router: Router) -> None:
    router.admin.rows = [json.dumps(brief(row)) for row in (REFUSED, ROW)]
    code, out, _ = run(capsys, "requests", "--address", router.address)
    assert code == 0
    header, row, refused = out.splitlines()
    assert header.split()[1:5] == ["request", "endpoint", "tenant", "outcome"]
    assert refused.split()[1:] == [
        *("r-2", "chat", "other\ufffd[31m", "Refused:", "ttft", "-", "-"),
        *("-", "-", "-", "-", "-", "-", "-", "-", "-"),
    ]
    assert row.split()[1:] == [
        *("r-1", "chat", "acme", "ok", "prefill-0", "decode-0", "812", "40"),
        *("100", "ms", "300", "ms", "200", "ms", "10.0", "ms"),
        *("610", "ms", "50.0", "ms", "2.00", "s"),
    ]
    code, out, _ = run(capsys, "requests", "--json", "--address", router.address)
    assert [one["request_id"] for one in json.loads(out)] == ["r-1", "r-2"]


def test_the_wait_in_the_router_stands_apart_from_the_queue_of_prefill():
    assert queue_waits(brief(ROW)) == (0.1, pytest.approx(0.3))
    assert queue_waits(brief(REFUSED)) == (None, None)
    # Another router had it, and does not tell when it admitted it.
    handed_on = replace(ROW, choices=(replace(CHOICE, admitted_s=2.0),))
    assert queue_waits(brief(handed_on)) == (0.4, 0.0)


def test_a_request_that_several_routers_tell_of_is_listed_once(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    router.admin.rows = [json.dumps(brief(row)) for row in (REFUSED, ROW)]
    both = f"{router.address},{router.address}"
    for flags, names in ((("--limit", "3"), "r-1 r-2"), (("--slowest",), "r-1 r-2")):
        code, out, _ = run(capsys, "requests", *flags, "--address", both)
        assert code == 0
        assert [line.split()[1] for line in out.splitlines()[1:]] == names.split()


def test_rows_of_several_routers_have_a_column_and_a_silent_router_is_named(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    rows = ((REFUSED, "router-0"), (ROW, "router-1"))
    router.admin.rows = [json.dumps(brief(row) | {"router": name}) for row, name in rows]
    router.admin.silent = {"router-2": "it did not\x1b[31m answer"}
    code, out, err = run(capsys, "requests", "--address", router.address)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["router", "router-1", "router-0"]
    assert err == "the requests of router-2 are missing: it did not\ufffd[31m answer\n"
    router.admin.rows = [json.dumps(whole(ROW) | {"behind": [], "router": "router-1"})]
    _, out, err = run(capsys, "explain", "r-1", "--address", router.address)
    assert out.splitlines()[0].endswith("configuration 3f9a1c02, router router-1")
    assert "router-2" in err


def test_one_of_several_addresses_may_be_dead(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    router.admin.rows = [json.dumps(brief(ROW))]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
    code, out, err = run(capsys, "requests", "--address", f"{dead},{router.address}")
    assert (code, len(out.splitlines())) == (0, 2)
    assert err.startswith(f"the requests of {dead} are missing: ")
    code, out, err = run(capsys, "requests", "--address", f"{dead},{dead}")
    assert (code, out) != (0, "") and code != 0 and err.startswith("tandem: ")


def test_requests_are_filtered_by_the_router(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    flags = ["--endpoint", "chat", "--tenant", "acme", "--slowest", "--failed"]
    flags += ["--since", "15m", "--limit", "7"]
    assert run(capsys, "requests", *flags, "--address", router.address)[0] == 0
    (wanted,) = router.admin.wanted
    assert (wanted.endpoint, wanted.tenant) == ("chat", "acme")
    assert wanted.slowest and wanted.failed
    assert (wanted.since_s, wanted.limit) == (900, 7)


@pytest.mark.parametrize(
    "wrong",
    [
        ("--since", "soon"),
        ("--since", "-1"),
        ("--limit", "0"),
        ("--limit", "1001"),
        ("--limit", "²"),
        ("--limit", "0000000019999999999"),
    ],
)
def test_a_wrong_filter_is_one_line(
    capsys: pytest.CaptureFixture[str], wrong: tuple[str, str]
) -> None:
    code, _, err = run(capsys, "requests", *wrong)
    assert (code, err.count("\n")) == (2, 1)
    assert wrong[0] in err


@pytest.mark.parametrize("wrong", [("explain", ""), ("explain", "\udcff")])
def test_an_id_that_none_can_be_is_one_line(
    capsys: pytest.CaptureFixture[str], router: Router, wrong: tuple[str, str]
) -> None:
    code, _, err = run(capsys, *wrong, "--address", router.address)
    assert (code, err.count("\n")) == (2, 1)


def test_a_request_is_explained_as_a_waterfall_and_in_words(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    behind = [Blocker("prefill_queue", 0, "prefill-0", "r-0", "other", "report", 4000, 0.25)]
    router.admin.rows = [json.dumps(whole(ROW) | {"behind": [asdict(one) for one in behind]})]
    code, out, _ = run(capsys, "explain", "r-1", "--address", router.address)
    assert code == 0
    assert router.admin.wanted[0].request_id == "r-1"
    lines = out.splitlines()
    assert lines[0] == (
        "request r-1: ok; endpoint chat, lane interactive, tenant acme, configuration 3f9a1c02"
    )
    assert lines[1].endswith("ended after 2.01 s; 812 prompt tokens, 40 tokens, cost 0.00125")
    assert lines[3] == (
        "choice 0 on prefill-0 -> decode-0: TTFT 610 ms (predicted 500 ms), TTLT 2.00 s"
    )
    bars = [line for line in lines if line.startswith("  ")]
    assert [line[2:20].strip() for line in bars] == [
        *("router wait", "prefill queue", "prefill", "first flush"),
        *("offer of KV", "decode admission", "transfer", "decode", "failover", "decode"),
    ]
    assert bars[1].split()[-2:] == ["300", "ms"]
    # Each bar begins where the one before it ends.
    ends = [len(line[: line.rindex("\u2588") + 1]) for line in bars if "\u2588" in line]
    assert ends == sorted(ends)
    text = "\n".join(lines)
    for sentence in (
        "The largest part of its TTFT was prefill queue: 49%.",
        "the KV cache might have no capacity for its answer; 3 requests were before it when",
        "queued on prefill-0 for 300 ms behind r-0 (other, report, 4000 prompt tokens, ",
        "decode-0 had no free slot in its batch for 60.0 ms.",
        "Its KV (2.5 MB) was handed over; that delayed its second token by 100 ms.",
        "3.5 requests in the mean; in 25% of them it had the most tokens.",
        "Its ITL was p50 30.0 ms, p95 50.0 ms; its longest stall was 200 ms.",
        "It lost its KV blocks twice to requests before it.",
        "decode-9 was lost: from 800 ms after its arrival on it got no token for 700 ms.",
        "99 of its tokens were computed again.",
    ):
        assert sentence in text


def test_a_refused_request_is_explained(capsys: pytest.CaptureFixture[str], router: Router) -> None:
    router.admin.rows = [json.dumps(whole(REFUSED) | {"behind": []})]
    _, out, _ = run(capsys, "explain", "r-2", "--address", router.address)
    assert "\x1b" not in out
    assert "its answer; 1 request was before it when it came." in out
    assert "- It ended with Refused: no capacity now" in out
    assert "- The refusal was decided 10.0 ms after its arrival." in out


def test_an_unknown_request_is_one_line(capsys: pytest.CaptureFixture[str], router: Router) -> None:
    code, out, err = run(capsys, "explain", "r-9", "--address", router.address)
    assert (code, out) == (2, "")
    assert err.startswith("tandem: no request 'r-9' runs or is remembered;")


def test_a_request_without_a_token_says_for_how_long(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    choice = ChoiceRow(0, "handed_over", "prefill-0", "decode-0", admitted_s=0.5)
    gone = replace(ROW, outcome="cancelled", choices=(choice,), time_to_cancel_s=0.004)
    router.admin.rows = [json.dumps(whole(gone) | {"behind": []})]
    _, out, _ = run(capsys, "explain", "r-1", "--address", router.address)
    assert "- It got no token in the 1.51 s after its replicas were chosen." in out
    assert "- Its replicas were free 4.0 ms after its end." in out
