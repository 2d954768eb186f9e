"""The command line: what goes wrong is one line on stderr and an exit code."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from cluster.cli import main as cli
from cluster.tenants.operator_key import OperatorKey
from engine.errors import Unavailable
from protos import inference_pb2, inference_pb2_grpc, router_pb2, router_pb2_grpc


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = cli.main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that passes for a model before anything is started."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


class Inference(inference_pb2_grpc.InferenceServicer):
    """Answers each prompt with two tokens; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[inference_pb2.GenerateRequest] = []

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.asked.append(request)
        yield inference_pb2.GenerateEvent(started=inference_pb2.Started(request_id="r"))
        for index, text in enumerate(("Good", " day")):
            tokens = inference_pb2.Tokens(index=index, ids=[index], text=text)
            yield inference_pb2.GenerateEvent(tokens=tokens)
        choice = inference_pb2.ChoiceSummary(ttft_s=0.25)
        summary = inference_pb2.Summary(completion_tokens=2, choices=[choice], total_s=0.5)
        yield inference_pb2.GenerateEvent(summary=summary)


class Admin(router_pb2_grpc.AdminServicer):
    """A cluster of one prefill replica and one router."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.refusal: str | None = None
        self.authorizations: list[object] = []
        self.weaken_security = False
        self.notices: list[str] = []

    def note(self, context: Any) -> None:
        self.authorizations.append(dict(context.invocation_metadata()).get("authorization"))

    async def Rollout(  # noqa: N802
        self, request: router_pb2.RolloutRequest, context: Any
    ) -> router_pb2.RolloutResponse:
        self.weaken_security = request.weaken_security
        weakens = ["router.api_keys: keys.yaml removed"] if request.weaken_security else []
        return router_pb2.RolloutResponse(id="r", weakens=weakens, notices=self.notices)

    async def Status(self, request: Any, context: Any) -> router_pb2.StatusResponse:  # noqa: N802
        self.note(context)
        blocks = router_pb2.BlockCounts(total=64, used=3, cached=2, leased=1)
        replica = router_pb2.ReplicaStatus(
            id="prefill#a",
            role="prefill",
            address="h:1",
            healthy=True,
            waiting=5,
            blocks=blocks,
            start_s={"weights": 4.0, "check": 0.5},
        )
        router = router_pb2.ReplicaStatus(id="router#b", role="router", healthy=True, running=4)
        rollout = router_pb2.RolloutStatus(id="r", version="v", state="serving")
        return router_pb2.StatusResponse(
            replicas=[replica, router], missing=self.missing, rollout=rollout
        )

    async def GiveRole(  # noqa: N802
        self, request: router_pb2.GiveRoleRequest, context: Any
    ) -> router_pb2.GiveRoleResponse:
        self.note(context)
        if self.refusal is not None:
            await context.abort(grpc.StatusCode.NOT_FOUND, self.refusal)
        return router_pb2.GiveRoleResponse(before="prefill")

    async def Stop(self, request: Any, context: Any) -> router_pb2.StopResponse:  # noqa: N802
        self.note(context)
        if self.refusal is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.refusal)
        return router_pb2.StopResponse()


class Router:
    """A gRPC server with those two, on a thread of its own."""

    def __init__(self) -> None:
        self.inference, self.admin = Inference(), Admin()
        self.address = ""
        self._ready, self._thread = threading.Event(), threading.Thread(target=self._run)

    def __enter__(self) -> Router:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with self._server() as port:
            self.address = f"127.0.0.1:{port}"
            self._ready.set()
            await self._end.wait()

    @asynccontextmanager
    async def _server(self) -> AsyncIterator[int]:
        server = grpc.aio.server()
        inference_pb2_grpc.add_InferenceServicer_to_server(self.inference, server)
        router_pb2_grpc.add_AdminServicer_to_server(self.admin, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        yield port
        await server.stop(0)


@pytest.fixture
def router() -> Iterator[Router]:
    with Router() as router:
        yield router


# --- one line, exit code 2 ---


def test_a_missing_model_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "serve", "--model", str(tmp_path / "none"))
    assert (code, out) == (2, "")
    assert err == f"tandem: model.path: there is no folder {tmp_path / 'none'} (--model)\n"


def test_a_folder_without_a_model_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = run(capsys, "serve", "--model", str(tmp_path))
    assert code == 2
    assert "holds no config.json" in err


@pytest.mark.parametrize("flag", ["--port", "--grpc-port", "--dashboard-port"])
def test_a_taken_port_is_named_with_its_flag(
    capsys: pytest.CaptureFixture[str], model: Path, flag: str
) -> None:
    ports = {"--port": "0", "--grpc-port": "0", "--dashboard-port": "0"}
    with taken_port() as port:
        given = [part for pair in (ports | {flag: str(port)}).items() for part in pair]
        code, out, err = run(capsys, "serve", "--model", str(model), *given)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert f"127.0.0.1:{port}: address already in use" in err
    assert f"another port with {flag} " in err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # nothing was begun yet


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"tandem \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_a_missing_file_of_keys_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(f"router: {{api_keys: {tmp_path}/none.yaml}}\n")
    code, out, err = run(capsys, "serve", "--config", str(path), "--model", str(model))
    assert (code, out) == (2, "")
    assert f"there is no file {tmp_path}/none.yaml; `tandem keys add` makes it" in err


def test_a_bad_key_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("kv: {block_siz: 8}\nprefill: {replicas: many}\n")
    code, _, err = run(capsys, "serve", "--config", str(path))
    assert code == 2
    assert err.count("\n") == 1
    assert "kv.block_siz: unknown key; did you mean kv.block_size?" in err
    assert "prefill.replicas: expected an integer, not 'many'" in err


def test_a_flag_s_value_is_checked_like_the_file_s(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "serve", "--dtype", "int3")
    assert code == 2
    assert "model.dtype: expected" in err


@pytest.mark.parametrize("arguments", [[], ["dance"], ["serve", "--port", "x"], ["generate"]])
def test_wrong_arguments_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["generate", "x"], 2), (["chat", "x"], 2), (["stop"], 2), (["status"], 1)],
)
def test_no_router_is_one_line_that_names_the_address(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: int
) -> None:
    code, _, err = run(capsys, *arguments, "--address", "127.0.0.1:1")
    assert code == expected
    assert err.count("\n") == 1
    assert "router at 127.0.0.1:1" in err


def test_a_bad_log_level_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_LOG", "loud")
    code, _, err = run(capsys, "status")
    assert code == 2
    assert "TANDEM_LOG" in err


def test_a_reader_that_goes_away_ends_it_quietly(router: Router) -> None:
    command = [
        sys.executable,
        "-m",
        "cluster.cli.main",
        "generate",
        "x",
        "--address",
        router.address,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        error = process.stderr.read()
    assert process.wait(30) == 1
    assert error == b""


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom cluster.cli import main\ntry:\n    main.main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "print({'ray', 'torch', 'grpc', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


# --- what goes right ---


def test_generate_streams_and_passes_the_sampling(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    flags = ["--max-tokens", "7", "--temperature", "0", "--stop", "a", "--stop", "b", "--timing"]
    code, out, err = run(capsys, "generate", "Hello", "--address", router.address, *flags)
    assert (code, out) == (0, "Good day\n")
    assert err == "2 tokens in 0.50 s, the first after 250 ms\n"
    (asked,) = router.inference.asked
    assert asked.text == "Hello"
    assert asked.sampling.max_tokens == 7
    assert list(asked.sampling.stop) == ["a", "b"]


def test_chat_answers_a_prompt_once(capsys: pytest.CaptureFixture[str], router: Router) -> None:
    code, out, _ = run(capsys, "chat", "Hi", "--system", "Be kind.", "--address", router.address)
    assert (code, out) == (0, "Good day\n")
    turns = [(turn.role, turn.content) for turn in router.inference.asked[0].chat.messages]
    assert turns == [("system", "Be kind."), ("user", "Hi")]


def test_a_conversation_carries_its_history(
    capsys: pytest.CaptureFixture[str], router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["Hi", "", "And?"])

    def read(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    code, out, _ = run(capsys, "chat", "--address", router.address)
    assert code == 0
    assert out.count("Good day") == 2
    turns = [turn.content for turn in router.inference.asked[1].chat.messages]
    assert turns == ["Hi", "Good day", "And?"]


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


def test_a_failing_start_is_one_line(
    capsys: pytest.CaptureFixture[str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object) -> None:
        raise Unavailable("decode: the model has no weights")

    monkeypatch.setattr("cluster.deploy.launcher.Launcher.run", fail)
    flags = ["--port", "0", "--grpc-port", "0", "--dashboard-port", "0"]
    code, _, err = run(capsys, "serve", "--model", str(model), *flags)
    assert (code, err) == (2, "tandem: decode: the model has no weights\n")


# --- operators' keys ---


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


def test_a_rollout_tells_what_stays_open_until_a_new_start(
    capsys: pytest.CaptureFixture[str], router: Router
) -> None:
    router.admin.notices = ["Ray's pages of metrics stay open"]
    code, _, err = run(capsys, "rollout", "--address", router.address)
    assert (code, err) == (0, "note: Ray's pages of metrics stay open\n")
