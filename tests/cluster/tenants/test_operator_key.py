"""The operator's key of this user: written for one address, closed to others, gone at the end."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.tenants.operator_key import OperatorKey, digest_from_environment, operator_key
from engine.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TANDEM_OPERATOR_KEY", raising=False)
    return tmp_path


def files(home: Path) -> list[Path]:
    return [*(home / ".tandem" / "run").iterdir()]


@pytest.fixture
def written():
    key = OperatorKey()
    yield key
    key.remove()


def test_only_its_user_may_read_it_while_it_is_needed(home, written):
    written.write("127.0.0.1:50051")
    (file,) = files(home)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert operator_key("127.0.0.1:50051") == operator_key("localhost:50051") == written.key
    written.remove()
    written.remove()
    assert files(home) == [] and operator_key("127.0.0.1:50051") is None


@pytest.mark.parametrize(
    ("address", "sent", "kept"),
    [
        ("127.0.0.1:7", [], ["127.0.0.1:8", "127.0.0.2:7", "[::1]:7", "a.example:7"]),
        ("0.0.0.0:7", ["127.0.0.1:7", "127.0.0.2:7"], ["[::1]:7", "192.0.2.1:7", "a.example:7"]),
        ("[::]:7", ["127.0.0.1:7"], ["192.0.2.1:7", "[2001:db8::1]:7", "127.0.0.1:8"]),
        ("192.0.2.1:7", [], ["127.0.0.1:7", "192.0.2.2:7"]),
    ],
)
def test_it_is_sent_to_no_address_that_another_user_could_have(written, address, sent, kept):
    written.write(address)
    assert [operator_key(one) for one in (address, *sent)] == [written.key] * (1 + len(sent))
    assert [operator_key(one) for one in kept] == [None] * len(kept)


def test_a_file_that_others_can_read_or_change_is_not_used(home, written):
    written.write("127.0.0.1:7")
    files(home)[0].chmod(0o644)
    assert operator_key("127.0.0.1:7") is None


def test_an_open_folder_is_closed_and_a_link_is_refused(home, written):
    run = home / ".tandem" / "run"
    run.mkdir(parents=True)
    run.chmod(0o777)
    written.write("127.0.0.1:7")
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    written.remove()
    run.rmdir()
    (home / "elsewhere").mkdir()
    run.symlink_to(home / "elsewhere")
    with pytest.raises(ConfigError, match="another user"):
        written.write("127.0.0.1:7")


KILLED = """
from cluster.tenants.operator_key import OperatorKey
import signal, sys
key = OperatorKey()
key.write("127.0.0.1:7")
print(key.key, flush=True)
signal.pause()
"""


def test_leftovers_of_a_kill_are_removed_and_files_in_use_are_not(home, written):
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        other = killed.stdout.readline().strip()
        written.write("127.0.0.1:8")
        assert operator_key("127.0.0.1:7") == other
        os.kill(killed.pid, signal.SIGKILL)
    assert operator_key("127.0.0.1:7") == other
    next_one = OperatorKey()
    next_one.write("127.0.0.1:9")
    assert operator_key("127.0.0.1:7") is None
    assert operator_key("127.0.0.1:8") == written.key
    next_one.remove()


def test_the_end_of_one_leaves_the_key_that_another_has_written_there(written):
    written.write("127.0.0.1:7")
    later = OperatorKey()
    later.write("127.0.0.1:7")
    written.remove()
    assert operator_key("127.0.0.1:7") == later.key != written.key
    later.remove()


def test_the_environments_key_beats_the_file_and_must_be_long(monkeypatch, written):
    written.write("127.0.0.1:7")
    monkeypatch.setenv("TANDEM_OPERATOR_KEY", "a key of the environment")
    assert operator_key("127.0.0.1:7") == OperatorKey().key == "a key of the environment"
    assert digest_from_environment() == OperatorKey().digest
    for wrong in ("short", "é" * 20, "a line\nand another line"):
        monkeypatch.setenv("TANDEM_OPERATOR_KEY", wrong)
        with pytest.raises(ConfigError, match="TANDEM_OPERATOR_KEY"):
            operator_key("127.0.0.1:7")


def test_where_nothing_can_be_written_the_error_says_so(home, written):
    (home / ".tandem").write_text("a file")
    with pytest.raises(ConfigError, match="no key can be stored"):
        written.write("127.0.0.1:7")
    assert operator_key("127.0.0.1:7") is None
