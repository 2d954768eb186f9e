"""The secret of `tandem serve` on one machine, and the secret that several hosts need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.cli.main import main
from cluster.config.deployment import DirectoryConfig, RayConfig
from cluster.config.schema import TandemConfig, load_config
from cluster.config.security import SecurityConfig
from cluster.deploy import run_secret
from cluster.deploy.launcher import Launcher
from cluster.deploy.run_secret import RunSecret
from cluster.rpc.membership import Membership
from engine.errors import ConfigError
from protos.wire.secret import ClusterSecret


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run_secret, "_SWEEP_AGE_S", -1.0)
    return tmp_path


def test_a_run_has_a_secret_for_this_user_alone_and_takes_it_away(temporary):
    made, other = RunSecret.make(), RunSecret.make()
    ClusterSecret.read(made.path)
    assert made.path.parent.stat().st_mode & 0o777 == 0o700
    assert made.path.stat().st_mode & 0o777 == 0o600
    assert made.path.read_text() != other.path.read_text()
    for one in (made, made, other):
        one.remove()
    assert not list(temporary.iterdir())


def test_what_a_killed_run_left_is_removed_by_the_next_and_a_living_run_keeps_its_own(temporary):
    code = f"""
import tempfile
tempfile.tempdir = {str(temporary)!r}
from cluster.deploy.run_secret import RunSecret
made = RunSecret.make()
print(made.path, flush=True)
import time; time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        left = Path(run.stdout.readline().strip())
        mine = RunSecret.make()
        assert left.exists()
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    next_run = RunSecret.make()
    assert not left.parent.exists()
    assert mine.path.exists()
    for one in (mine, next_run):
        one.remove()


def test_a_cluster_on_several_hosts_needs_a_secret_of_its_own(temporary):
    config = load_config()
    hosts = replace(
        config, ray=RayConfig(address="head:6379"), directory=DirectoryConfig(url="redis://x")
    )
    with pytest.raises(ConfigError, match=r"ray\.address needs security\.secret_file"):
        Launcher(hosts)
    missing = SecurityConfig(str(temporary / "missing"))
    for one in (hosts, config):
        with pytest.raises(ConfigError, match="cannot be read"):
            Launcher(replace(one, security=missing))


def test_without_a_secret_a_process_is_no_member():
    with pytest.raises(ConfigError, match=r"security\.secret_file is not set"):
        Membership.of(TandemConfig())


def test_a_secret_for_several_hosts_is_made_once(temporary, capsys):
    path = temporary / "secrets" / "tandem"
    assert main(["secret", str(path)]) == 0
    text = path.read_text().strip()
    assert text not in capsys.readouterr().out
    Membership.of(replace(TandemConfig(), security=SecurityConfig(str(path))))
    assert main(["secret", str(path)]) == 2
    assert "exists" in capsys.readouterr().err
    assert path.read_text().strip() == text


def test_the_file_of_a_secret_comes_back_absolute(temporary, monkeypatch):
    monkeypatch.chdir(temporary)
    config = load_config(None, {"security.secret_file": "secret"})
    assert config.security.secret_file == str(temporary / "secret")
