"""The section `tls`: what is checked when a configuration is loaded."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from cluster.config.schema import TandemConfig, load_config, parse_config
from cluster.config.tls import TlsConfig
from cluster.discovery.rollout import next_config
from engine.errors import ConfigError
from tests.certificates import Certificates


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def loaded(folder: Path, tls: object, **directory: str) -> TandemConfig:
    path = folder / "tandem.yaml"
    path.write_text(yaml.safe_dump({"tls": tls, "directory": directory}))
    config = load_config(path)
    config.tls.check()
    return config


def test_without_the_section_nothing_is_encrypted() -> None:
    assert TandemConfig().tls == TlsConfig(None, None, None)


def test_paths_are_absolute(
    own: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.issue()
    monkeypatch.chdir(own.folder)
    front = {"certificate": "member.pem", "key": "member.key"}
    parts = {
        "front_ends": front,
        "internal": front | {"authority": "authority.pem"},
        "redis": {"authority": "authority.pem"},
    }
    config = loaded(tmp_path, parts, url="rediss://redis:6379/0")
    found = asdict(config.tls)
    assert found["front_ends"]["key"] == str(own.folder / "member.key")
    assert found["internal"] == {
        "certificate": str(own.folder / "member.pem"),
        "key": str(own.folder / "member.key"),
        "authority": own.authority,
        "name": "tandem.internal",
    }
    assert found["redis"]["authority"] == own.authority
    assert parse_config(config.to_dict()) == config


def test_files_that_do_not_fit_are_refused_by_key_and_name(
    own: Certificates, tmp_path: Path
) -> None:
    issued, other = own.issue(), own.issue(file="other")
    late = own.issue(file="late", expired=True)
    foreign = Certificates(tmp_path, "foreign").authority
    good = asdict(issued)
    for part, values, message in (
        ("front_ends", good | {"key": other.key}, r"other\.key: is not the key of"),
        ("front_ends", asdict(late), r"late\.pem: certificate has expired"),
        ("front_ends", good | {"certificate": "/no.pem"}, r"/no\.pem: cannot be read"),
        ("internal", good | {"authority": foreign}, r"member\.pem: "),
        ("internal", good | {"authority": own.authority, "name": "x.y"}, "Hostname mismatch"),
    ):
        with pytest.raises(ConfigError, match=rf"^tls\.{part}: .*{message}"):
            loaded(tmp_path, {part: values})


def test_keys_that_are_missing_or_useless_are_refused(own: Certificates, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.front_ends\.key: "):
        loaded(tmp_path, {"front_ends": {"certificate": "a.pem"}})
    with pytest.raises(ConfigError, match=r"tls\.redis\.certificate and key must be given"):
        loaded(tmp_path, {"redis": {"certificate": "a.pem"}})
    with pytest.raises(ConfigError, match=r"tls\.redis needs directory\.url to begin with rediss"):
        loaded(tmp_path, {"redis": {"authority": own.authority}}, url="redis://redis:6379/0")


def test_a_rollout_cannot_switch_tls_off(own: Certificates) -> None:
    running = TandemConfig(tls=TlsConfig(own.issue(), own.internal()))
    assert next_config(running, TandemConfig()).tls == running.tls
