"""`tandem serve`: what is wrong is one line, before anything starts."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.errors import Unavailable
from tests.cluster.cli.fake_router import run


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


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


def test_a_failing_start_is_one_line(
    capsys: pytest.CaptureFixture[str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object) -> None:
        raise Unavailable("decode: the model has no weights")

    monkeypatch.setattr("cluster.deploy.launcher.Launcher.run", fail)
    flags = ["--port", "0", "--grpc-port", "0", "--dashboard-port", "0"]
    code, _, err = run(capsys, "serve", "--model", str(model), *flags)
    assert (code, err) == (2, "tandem: decode: the model has no weights\n")
