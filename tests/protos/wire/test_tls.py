"""Certificates that change while a process runs: followed, and never for the worse."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from engine.errors import ConfigError
from protos.wire.tls import client_tls, front_end_tls, member_tls
from tests.certificates import NAME, Certificates


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_a_renewed_certificate_is_taken(own: Certificates) -> None:
    tls = front_end_tls(own.issue().identity, poll_s=0)
    before = tls.get()
    assert tls.get() is before
    own.issue()
    assert tls.get().chain != before.chain


def test_a_renewed_authority_and_certificate_are_taken(own: Certificates, tmp_path: Path) -> None:
    issued = own.issue()
    tls = member_tls(issued.identity, own.authority, NAME, poll_s=0)
    before = tls.get()
    other = Certificates(tmp_path, "other")
    renewed = other.issue()
    for new, old in (
        (other.authority, own.authority),
        (renewed.certificate, issued.certificate),
        (renewed.key, issued.key),
    ):
        assert tls.get() is before  # as long as they do not fit together
        Path(old).write_bytes(Path(new).read_bytes())
    assert tls.get() is not before


@pytest.mark.parametrize("what", ["broken", "gone", "expired", "key"])
def test_a_renewal_that_fits_not_keeps_the_old_one_with_one_line(
    own: Certificates, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    caplog.set_level(logging.INFO, "protos")
    issued = own.issue()
    tls = front_end_tls(issued.identity, poll_s=0)
    before = tls.get()
    if what == "broken":
        Path(issued.certificate).write_text("half")
    elif what == "gone":
        Path(issued.certificate).unlink()
    elif what == "expired":
        own.issue(expired=True)
    else:
        Path(issued.key).write_bytes(Path(own.issue(file="other").key).read_bytes())
    for _ in range(3):
        assert tls.get() is before
    assert [record.message for record in caplog.records] == ["a changed certificate is not used"]
    own.issue()
    assert tls.get().chain != before.chain
    assert caplog.records[-1].message == "a changed certificate is used"


def test_the_files_are_looked_at_seldom(own: Certificates) -> None:
    tls = front_end_tls(own.issue().identity, poll_s=3600)
    before = tls.get()
    own.issue()
    assert tls.get() is before


def test_at_first_a_fault_is_raised(own: Certificates) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        client_tls("/no/authority")
    with pytest.raises(ConfigError, match="has expired"):
        front_end_tls(own.issue(expired=True).identity)
