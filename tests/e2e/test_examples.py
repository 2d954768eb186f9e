"""The examples of README, tutorial and how-to guides, run as they stand there against one server.

An example is a block `bash`, `sh` or `python` that asks a running server; what is only to be read
is `text`. The server has the usual ports; where others have those, the examples get its addresses
in their place.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.e2e.serving import Serving, serve

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]
ROOT = Path(__file__).resolve().parents[2]
HTTP, GRPC = "127.0.0.1:8000", "127.0.0.1:50051"
ASKS = re.compile(rf"{HTTP}|{GRPC}|^\.venv/bin/tandem (?:chat|generate|status|batch)\b", re.M)
# Pages whose examples need other programs, other servers, or an hour.
ELSEWHERE = {
    "aiperf": "tests/clients",
    "guidellm": "tests/clients",
    "vllm-bench": "tests/clients",
    "certificates": "tests/docs/test_certificates.py",
    "compare-batching-modes": "starts a server for each mode",
}
WEBSOCKET, RESUMED, BATCH = "-m websockets", "$LAST_ID", "tandem batch"
# However slow the machine is, nothing is refused for it.
PATIENT = {"ttft_budget_ms": 600_000, "itl_budget_ms": 60_000}
# The endpoints that the pages have the reader write down.
ENDPOINTS = {
    "chat": {},
    "voice": {"stream": "tokens"},
    "report": {"stream": "whole"},
    "night": {"lane": "batch"},
}
# What `.venv/bin/` has beside a README, wherever the environment of the tests is.
TANDEM = """#!/bin/sh
case "$1" in batch) at="--url {http}";; *) at="--address {grpc}";; esac
exec "{python}" -m cluster.cli.main "$@" $at
"""
PYTHON = '#!/bin/sh\nexec "{python}" "$@"\n'


@dataclass(frozen=True)
class Example:
    """A block of a page, and its line there."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.stem}:{self.line}"


def examples() -> list[Example]:
    found = []
    for path in (ROOT / "README.md", ROOT / "docs/tutorial.md", *ROOT.glob("docs/howto/*.md")):
        page = path.read_text()
        for block in re.finditer(r"^ *```(bash|sh|python)\n(.*?)^ *```$", page, re.M | re.S):
            text, line = textwrap.dedent(block[2]), page[: block.start()].count("\n") + 1
            if ASKS.search(text) and path.stem not in ELSEWHERE:
                found.append(Example(path.relative_to(ROOT), line, block[1], text))
    return sorted(found, key=str)


EXAMPLES = examples()


def the_one_with(part: str) -> Example:
    (found,) = (one for one in EXAMPLES if part in one.text)
    return found


@dataclass(frozen=True)
class Reader:
    """Somebody who pastes examples in a folder, with the server in another terminal."""

    serving: Serving
    folder: Path

    def begin(self, example: Example, **env: str) -> subprocess.Popen[str]:
        http = self.serving.http.removeprefix("http://").removesuffix("/v1")
        text = example.text.replace(HTTP, http).replace(GRPC, self.serving.grpc)
        shell = ("bash", "-e", "-o", "pipefail", "-c")
        command = (sys.executable, "-c") if example.language == "python" else shell
        return subprocess.Popen(
            [*command, text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        )

    def paste(self, example: Example, **env: str) -> str:
        process = self.begin(example, **env)
        try:
            out, error = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode == 0, error
        assert re.search(r"\w{2}", out), error
        assert '"error"' not in out
        return out


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    endpoints = {name: PATIENT | settings for name, settings in ENDPOINTS.items()}
    (folder / "patient.yaml").write_text(yaml.safe_dump({"endpoints": endpoints}))
    usual = all(free(int(address.rpartition(":")[2])) for address in (HTTP, GRPC))
    ports = ("--port", "8000", "--grpc-port", "50051") if usual else ()
    with serve("--config", str(folder / "patient.yaml"), *ports, folder=folder) as serving:
        programs = folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        at = {"grpc": serving.grpc, "http": serving.http.removesuffix("/v1")}
        for name, text in (("tandem", TANDEM), ("python", PYTHON)):
            (programs / name).write_text(text.format(python=sys.executable, **at))
            (programs / name).chmod(0o755)
        yield Reader(serving, folder)


def free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_there_is_one_example_for_each_way_in():
    texts = " ".join(one.text for one in EXAMPLES if one.page.name == "README.md")
    for way in (".venv/bin/tandem chat", "curl", "OpenAI(", "Client(", "ws://"):
        assert way in texts


PREPARED = (WEBSOCKET, RESUMED, BATCH)
ALONE = [one for one in EXAMPLES if not any(part in one.text for part in PREPARED)]


@pytest.mark.parametrize("example", ALONE, ids=str)
def test_an_example_runs_as_pasted(reader, example):
    reader.paste(example)


def test_a_stream_is_resumed_as_the_page_says(reader):
    begun = reader.paste(the_one_with('"resumable": true'))
    stream = re.search(r"^x-stream-id: (\S+)", begun, re.M)
    last = re.findall(r"^id: (\S+)", begun, re.M)
    assert stream is not None
    assert len(last) > 1
    # The first token is an event of its own.
    env = {"LAST_ID": last[0], "STREAM": stream[1], "HAVE": "1"}
    rest = reader.paste(the_one_with(RESUMED), **env)
    assert rest.count("[DONE]") == 2


def test_a_file_of_requests_is_answered(reader):
    page = (ROOT / "docs/howto/run-batches.md").read_text()
    (lines,) = re.findall(r"^ *```\n(.*?)^ *```$", page, re.M | re.S)
    (reader.folder / "requests.jsonl").write_text(textwrap.dedent(lines))
    process = reader.begin(the_one_with(BATCH))
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert '"status_code": 200' in (reader.folder / "results.jsonl").read_text()


def test_a_generation_is_typed_into_a_websocket(reader):
    page = (ROOT / "docs/howto/use-the-websocket.md").read_text()
    (typed,) = re.findall(r"^Type `(.*?)`", page, re.M)
    process = reader.begin(the_one_with(WEBSOCKET))
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(typed + "\n")
        process.stdin.flush()
        shown = ""
        for line in process.stdout:
            shown += line
            if '"end"' in line or '"error"' in line:
                break
        assert all(f'"{kind}"' in shown for kind in ("started", "tokens", "end")), shown
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
