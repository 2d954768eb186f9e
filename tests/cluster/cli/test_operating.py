"""`tandem status`, `role`, `rollout`, `restart`, `stop`: what operators read, the key they send."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import grpc
import pytest

from cluster.tenants.operator_key import OperatorKey
from protos import router_pb2
from tests.cluster.cli.fake_router import Router, run


def test_status_is_a_table_or_json(capsys: pytest.CaptureFixture[str], router: Router) -> None:
    code, out, _ = run(capsys, "status", "--address", router.address)
    assert code == 0
    header, prefill, routers = out.splitlines()
    assert header.split()[-6:] == ["total", "used", "cached", "leased", "quarantined", "orphaned"]
    assert prefill.split() == [
        "prefill",
        "prefill#a",
        "h:1",
        "ok",
        "4.5",
        "5",
        "0",
        "64",
        "3",
        "2",
        "1",
        "0",
        "0",
    ]
    assert routers.split()[-6:] == ["-"] * 6
    code, out, _ = run(capsys, "status", "--json", "--address", router.address)
    data = json.loads(out)
    assert code == 0
    assert data["healthy"] is True
    assert data["replicas"][0]["blocks"]["used"] == 3
    assert data["replicas"][0]["start_s"] == {"weights": 4.0, "check": 0.5}


def test_a_status_that_is_wider_than_the_terminal_has_its_blocks_below(
    capsys: pytest.CaptureFixture[str], router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("status", "--address", router.address)
    _, piped, _ = run(capsys, *command)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert run(capsys, *command)[1] == piped
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, *command)
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[-2:] for line in lines[:4]] == [
        ["waiting", "running"],
        ["5", "0"],
        ["0", "4"],
        [],
    ]
    assert [line.split() for line in lines[4:]] == [
        ["id", "total", "used", "cached", "leased", "quarantined", "orphaned"],
        ["prefill#a", "64", "3", "2", "1", "0", "0"],
    ]


def test_status_exits_1_when_a_pool_is_missing(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    router.admin.missing = ["decode"]
    code, out, _ = run(capsys, "status", "--address", router.address)
    assert code == 1
    assert out.endswith("replicas are missing: decode\n")


def test_stop_is_requested_or_refused(capsys: pytest.CaptureFixture[str], router: Router) -> None:
    assert run(capsys, "stop", "--address", router.address)[:2] == (
        0,
        "stop requested; `tandem serve` ends when its replicas have\n",
    )
    router.admin.refusal = "not started by tandem serve"
    code, _, err = run(capsys, "stop", "--address", router.address)
    assert code == 2
    assert "not started by tandem serve" in err


def test_a_role_is_given_or_refused(capsys: pytest.CaptureFixture[str], router: Router) -> None:
    arguments = ("role", "prefill#a", "decode", "--address", router.address)
    assert run(capsys, *arguments)[:2] == (0, "prefill#a: prefill -> decode\n")
    router.admin.refusal = "no replica 'prefill#a' that takes work"
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "no replica" in err


def test_commands_send_the_operators_key_of_this_user(
    capsys: pytest.CaptureFixture[str],
    router: Router,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TANDEM_OPERATOR_KEY", raising=False)
    commands = (("status",), ("stop",), ("role", "prefill#a", "both"))
    for command in commands:
        assert run(capsys, *command, "--address", router.address)[0] == 0
    stored = OperatorKey()
    stored.write(router.address)
    for command in commands:
        assert run(capsys, *command, "--address", router.address)[0] == 0
    stored.remove()
    monkeypatch.setenv("TANDEM_OPERATOR_KEY", "a key of the environment")
    assert run(capsys, "status", "--address", router.address)[0] == 0
    expected = [None] * 3 + [f"Bearer {stored.key}"] * 3 + ["Bearer a key of the environment"]
    assert router.admin.authorizations == expected


@pytest.mark.parametrize("said", [False, True])
def test_a_rollout_tells_what_it_weakens_where_it_is_told_to(
    capsys: pytest.CaptureFixture[str], router: Router, said: bool
) -> None:
    flags = ("--weaken-security",) if said else ()
    code, _, err = run(capsys, "rollout", *flags, "--address", router.address)
    assert (code, router.admin.weaken_security) == (0, said)
    assert err == ("weakens router.api_keys: keys.yaml removed\n" if said else "")


def test_a_rollout_and_status_tell_which_replicas_start(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    progress = "weights, 42.0 GB of 140 GB, about 82 s left"
    starting = router_pb2.StartingReplica(
        id="decode#b\x1b", role="decode", stage="weights", progress=progress, done=42, total=140
    )
    line = f"decode#b\N{REPLACEMENT CHARACTER}: {progress}"
    router.admin.starting = [starting]
    code, _, err = run(capsys, "rollout", "--address", router.address)
    assert code == 0
    assert re.fullmatch(rf"rollout: \d+ s, starting, {re.escape(line)}\n", err)
    router.admin.starting = [starting]
    _, out, _ = run(capsys, "status", "--address", router.address)
    assert out.endswith(f"\nstarting: {line}\n")
    router.admin.starting = [starting]
    _, out, _ = run(capsys, "status", "--json", "--address", router.address)
    (shown,) = json.loads(out)["starting"]
    assert (shown["stage"], shown["done"], shown["total"]) == ("weights", 42, 140)
    assert shown["left_s"] is None


def test_a_rollout_tells_what_stays_open_until_a_new_start(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    router.admin.notices = ["Ray's pages of metrics stay open"]
    code, _, err = run(capsys, "rollout", "--address", router.address)
    assert (code, err) == (0, "note: Ray's pages of metrics stay open\n")


@pytest.mark.parametrize("code", [grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_a_rollout_outlives_a_router_that_ends_before_it_answers(
    capsys: pytest.CaptureFixture[str], router: Router, code: grpc.StatusCode
) -> None:
    router.admin.cut_off, router.admin.cut_off_by = 2, code
    ended, out, _ = run(capsys, "rollout", "--address", router.address)
    assert (ended, out) == (0, "v serves; what the one before it has begun goes on to its end\n")


def test_an_interrupted_restart_says_that_it_goes_on(
    capsys: pytest.CaptureFixture[str], router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    router.admin.cut_off = 1_000_000
    signals = [signal.SIGINT]

    def interrupt(context: object) -> None:
        if signals:
            os.kill(os.getpid(), signals.pop())

    monkeypatch.setattr(router.admin, "note", interrupt)
    code, out, err = run(capsys, "restart", "--address", router.address)
    assert (code, out) == (130, "")
    told = "tandem: the restart goes on; `tandem status --json` tells how far it is\n"
    assert re.sub(r"^restart: \d+ s, between two routers\n", "", err) == told


def test_a_restart_is_a_rollout_of_what_runs(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    code, out, _ = run(capsys, "restart", "--address", router.address)
    assert (code, router.admin.restart) == (0, True)
    assert out.startswith("new ones serve")
    assert run(capsys, "rollout", "--address", router.address)[0] == 0
    assert not router.admin.restart
