"""A link opens without a question to a name server, which may not answer for seconds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_INSIDE = "mount --bind $0 /etc/resolv.conf && ip link set lo up && exec $1 -m $2"
# In namespaces of its own: nothing outside sees the file, nor is asked.
_APART = ["unshare", "--mount", "--net", "sh", "-c"]


def test_a_link_asks_no_name_server(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("no unshare or ip here (util-linux, iproute2)")
    if subprocess.run([*_APART, "ip link set lo up"], capture_output=True).returncode:
        pytest.skip("no namespaces can be made here")
    names = tmp_path / "resolv.conf"
    names.write_text("nameserver 127.0.0.1\n")
    ended = subprocess.run(
        [*_APART, _INSIDE, names, sys.executable, "tests.kv_transfer.transports.silent_names"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) == 0
