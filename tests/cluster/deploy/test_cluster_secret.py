"""The secret of a cluster on several hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.cli.main import main
from cluster.config.deployment import DirectoryConfig, RayConfig
from cluster.config.schema import TandemConfig, load_config
from cluster.config.security import SecurityConfig
from cluster.deploy.launcher import Launcher
from cluster.rpc.membership import Membership
from engine.errors import ConfigError


@pytest.fixture
def temporary(tmp_path):
    return tmp_path


def test_a_cluster_on_several_hosts_needs_a_secret_of_its_own(temporary):
    config = load_config()
    hosts = replace(
        config, ray=RayConfig(address="head:6379"), directory=DirectoryConfig(url="redis://x")
    )
    with pytest.raises(ConfigError, match=r"ray\.address needs security\.secret_file"):
        Launcher(hosts)
    missing = SecurityConfig(str(temporary / "missing"))
    for one in (hosts, config):
        with pytest.raises(ConfigError, match="no such file"):
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
