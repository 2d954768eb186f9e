"""The file of a cluster's secret: who may read and write it, and what is in it."""

from __future__ import annotations

import logging
import os
import pickle

import pytest

from engine.errors import ConfigError
from protos.wire.secret import ClusterSecret, made


def written(path, text="0123456789abcdef", mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_made_secret_is_for_this_user_alone_and_can_be_read(tmp_path):
    path = made(tmp_path / "folder" / "secret")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    secret, again = ClusterSecret.read(path), ClusterSecret.read(str(path))
    signature = secret.sign("subject", b"a", b"b")
    assert again.verify(signature, "subject", b"a", b"b")
    assert len(path.read_text().strip()) == 64
    assert made(tmp_path / "other").read_text() != path.read_text()
    with pytest.raises(ConfigError, match="exists"):
        made(path)


def test_a_signature_is_of_one_subject_and_its_parts_alone():
    secret = ClusterSecret(b"0123456789abcdef")
    signature = secret.sign("subject", b"ab", b"c")
    for subject, parts in [
        ("subject", (b"a", b"bc")),
        ("subject", (b"abc",)),
        ("other", (b"ab", b"c")),
    ]:
        assert not secret.verify(signature, subject, *parts)
    assert not ClusterSecret(b"0123456789abcdeX").verify(signature, "subject", b"ab", b"c")
    assert not secret.verify(b"", "subject", b"ab", b"c")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "empty"), (" \n", "empty"), ("short", "16 to 4096 bytes"), ("x" * 5000, "16 to 4096")],
)
def test_a_secret_that_is_none_is_refused(tmp_path, text, problem):
    with pytest.raises(ConfigError, match=problem):
        ClusterSecret.read(written(tmp_path / "secret", text))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no such file; `tandem secret .*missing` makes one"):
        ClusterSecret.read(tmp_path / "missing")
    with pytest.raises(ConfigError, match="cannot be read"):
        ClusterSecret.read(tmp_path)
    with pytest.raises(ConfigError, match="no secret can be made"):
        made(written(tmp_path / "file") / "secret")


@pytest.mark.parametrize("mode", [0o602, 0o622, 0o666])
def test_a_secret_that_all_users_may_write_is_refused(tmp_path, mode):
    with pytest.raises(ConfigError, match="may write"):
        ClusterSecret.read(written(tmp_path / "secret", mode=mode))


def test_a_users_own_secret_that_all_may_read_is_refused(tmp_path, monkeypatch):
    path = written(tmp_path / "secret", mode=0o644)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    os.chown(path, 1000, -1) if os.geteuid() == 0 else None
    with pytest.raises(ConfigError, match="may read"):
        ClusterSecret.read(path)


@pytest.mark.parametrize(("mode", "warns"), [(0o440, False), (0o640, False), (0o644, True)])
def test_a_mounted_secret_of_another_owner_is_read(tmp_path, monkeypatch, caplog, mode, warns):
    """Kubernetes mounts secrets as root's, and gives the pod's group the right to read."""
    path = written(tmp_path / "secret", mode=mode)
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    with caplog.at_level(logging.WARNING):
        ClusterSecret.read(path)
    assert bool(caplog.records) == warns


def test_no_dump_shows_a_secret():
    secret = ClusterSecret(b"0123456789abcdef")
    assert "0123" not in f"{secret} {secret!r}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
