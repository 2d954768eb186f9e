"""The command line: what goes wrong is one line on stderr and an exit code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli import main as cli
from tests.cluster.cli.fake_router import run


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"tandem \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize("arguments", [[], ["dance"], ["serve", "--port", "x"], ["generate"]])
def test_wrong_arguments_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["generate", "x"], 2),
        (["chat", "x"], 2),
        (["stop"], 2),
        (["status"], 1),
        (["requests"], 2),
        (["explain", "x"], 2),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_router_is_one_line_that_says_what_to_do(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: int, host: str
) -> None:
    code, _, err = run(capsys, *arguments, "--address", f"{host}:1")
    assert code == expected
    start = f"tandem: router at {host}:1: nothing listens there: start `tandem serve`"
    assert err == f"{start}, or name another address\n"


def test_no_server_over_http_is_one_line_that_says_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = tmp_path / "in.jsonl"
    lines.write_text("")
    batch = ["batch", str(lines), str(tmp_path / "out")]
    for command in (batch, ["bench"]):
        code, _, err = run(capsys, *command, "--url", "http://localhost:1")
        assert code == 2
        assert "localhost:1: nothing listens there: start `tandem serve`" in err


def test_a_bad_log_level_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_LOG", "loud")
    code, _, err = run(capsys, "status")
    assert code == 2
    assert "TANDEM_LOG" in err


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom cluster.cli import main\ntry:\n    main.main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "print({'ray', 'torch', 'grpc', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_is_no_fault(closed: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    command = (
        f"{sys.executable} -m cluster.cli.main top --address 127.0.0.1:1 >{said} 2>&1 {closed}"
    )
    assert subprocess.run(["sh", "-c", command], timeout=60).returncode == 2
    assert "Traceback" not in said.read_text()
