"""The README's examples, run as they stand there against one server.

Its blocks `bash` and `python` are examples; what is only to be read is `text`. The server has the
usual ports; where others have those, the examples get its addresses in their place.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.serving import Serving, serve

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
HTTP, GRPC = "127.0.0.1:8000", "127.0.0.1:50051"
# However slow the machine is, nothing is refused for it.
PATIENT = "endpoints: {chat: {ttft_budget_ms: 600000, itl_budget_ms: 60000}}"
# What `.venv/bin/` has beside a README, wherever the environment of the tests is.
TANDEM = """#!/bin/sh
exec "{python}" -m cluster.cli.main "$@" --address {grpc}
"""
EXAMPLES = re.findall(
    r"^```(bash|python)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S
)


@dataclass(frozen=True)
class Reader:
    """Somebody who pastes examples in a folder, with the server in another terminal."""

    serving: Serving
    folder: Path

    def paste(self, language: str, text: str) -> subprocess.CompletedProcess[str]:
        http = self.serving.http.removeprefix("http://").removesuffix("/v1")
        text = text.replace(HTTP, http).replace(GRPC, self.serving.grpc)
        command = (
            [sys.executable, "-"] if language == "python" else ["bash", "-e", "-o", "pipefail"]
        )
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    (folder / "patient.yaml").write_text(PATIENT)
    usual = all(free(int(address.rpartition(":")[2])) for address in (HTTP, GRPC))
    ports = ("--port", "8000", "--grpc-port", "50051") if usual else ()
    with serve("--config", str(folder / "patient.yaml"), *ports, folder=folder) as serving:
        command = folder / ".venv" / "bin" / "tandem"
        command.parent.mkdir(parents=True)
        command.write_text(TANDEM.format(python=sys.executable, grpc=serving.grpc))
        command.chmod(0o755)
        yield Reader(serving, folder)


def free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_there_is_one_example_for_each_way_in():
    texts = " ".join(text for _, text in EXAMPLES)
    for way in (".venv/bin/tandem chat", "curl", "OpenAI(", "Client(", "ws://"):
        assert way in texts


@pytest.mark.parametrize(("language", "text"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_runs_as_pasted(reader, language, text):
    done = reader.paste(language, text)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\w{2}", done.stdout), done.stderr
    assert '"error"' not in done.stdout
