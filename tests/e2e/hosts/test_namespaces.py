"""The hosts themselves: they reach each other by name, can be cut off, and leave nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.hosts.namespaces import Switch
from tests.eventually import wait_until
from tests.helm.chart import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("can_have_hosts")]

PORT = 7000
SERVER = f"""
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(self.request.recv(100))
socketserver.TCPServer(("0.0.0.0", {PORT}), Echo).serve_forever()
"""
ASK = f"""
import socket
with socket.create_connection(("two", {PORT}), 5) as there:
    there.sendall(b"hello")
    print(there.recv(100).decode(), socket.gethostname())
"""
FOREVER = """
import sys, time
from pathlib import Path
from tests.e2e.hosts.namespaces import Switch
with Switch(("one",), Path(sys.argv[1])) as switch:
    switch["one"].start("sleep", "1000", log="sleep.log")
    print(switch.pid, switch["one"].pid, flush=True)
    time.sleep(1000)
"""


def echoed(address, timeout_s=5.0):
    with socket.create_connection((address, PORT), timeout_s) as there:
        there.sendall(b"hello")
        return there.recv(100)


def wires():
    return {name for _, name in socket.if_nameindex() if name.startswith("tdm")}


def gone(pid):
    """Also one that is dead and that nobody has buried."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def listens(address):
    try:
        return echoed(address) == b"hello"
    except OSError:
        return False


def test_hosts_are_separate_and_reach_each_other_by_name(tmp_path):
    with Switch(("one", "two"), tmp_path) as switch:
        server = switch["two"].start(sys.executable, "-c", SERVER, log="server.log")
        wait_until(lambda: listens(switch["two"].address))
        assert switch["one"].run(sys.executable, "-c", ASK) == "hello one\n"
        titles = switch["one"].processes().values()
        assert not any("socketserver" in title for title in titles)
        switch.cut("two")
        with pytest.raises(TimeoutError):
            echoed(switch["two"].address, 0.5)
        switch.mend("two")
        assert echoed(switch["two"].address) == b"hello"
        switch["two"].kill_all()
        assert server.wait(60) != 0
        assert switch["two"].run("echo", "alive") == "alive\n"


def test_nothing_is_left(tmp_path):
    before = wires()
    with pytest.raises(RuntimeError), Switch(("one",), tmp_path) as switch:
        sleeping = switch["one"].start("sleep", "1000", log="sleep.log")
        assert wires() - before
        raise RuntimeError
    assert sleeping.wait(60) != 0
    wait_until(lambda: not wires() - before)


def test_nothing_is_left_of_a_run_that_was_killed(tmp_path):
    before = wires()
    maker = subprocess.Popen(
        [sys.executable, "-c", FOREVER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with maker:
        assert maker.stdout is not None
        holders = [int(pid) for pid in maker.stdout.readline().split()]
        assert wires() - before
        maker.send_signal(signal.SIGKILL)
    wait_until(lambda: all(gone(pid) for pid in holders))
    wait_until(lambda: not wires() - before)
