"""Certificates made while a test runs: by the cluster's authority, by another, expired, renewed."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from cluster.config.tls import CertificateConfig, InternalTlsConfig, RedisTlsConfig

NAME = "tandem.internal"


class Certificates:
    """An authority and the files of what it signed, in a folder."""

    def __init__(self, folder: Path, name: str = "own") -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self._authority = trustme.CA()
        self.authority = str(self.folder / "authority.pem")
        self._authority.cert_pem.write_to_path(self.authority)

    def issue(self, *names: str, file: str = "member", expired: bool = False) -> CertificateConfig:
        """A certificate for `localhost`, 127.0.0.1 and the internal name, or for other names.

        An earlier one in the same files is replaced, as a renewal does: first the one, then the
        other.
        """
        ends = datetime.now(UTC) - timedelta(days=1) if expired else None
        begins = datetime.now(UTC) - timedelta(days=9)
        made = self._authority.issue_cert(
            *(names or ("localhost", "127.0.0.1", NAME)), not_before=begins, not_after=ends
        )
        certificate, key = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        replace_file(key, made.private_key_pem.bytes())
        replace_file(certificate, b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return CertificateConfig(str(certificate), str(key))

    def internal(self, issued: CertificateConfig | None = None) -> InternalTlsConfig:
        """The section for members with this certificate."""
        shown = issued or self.issue()
        return InternalTlsConfig(shown.certificate, shown.key, self.authority)

    def redis(self, issued: CertificateConfig | None = None) -> RedisTlsConfig:
        """The section for clients of Redis that show this certificate."""
        shown = issued or self.issue()
        return RedisTlsConfig(self.authority, shown.certificate, shown.key)

    def trusting(self) -> ssl.SSLContext:
        """A client's context that trusts this authority."""
        return ssl.create_default_context(cafile=self.authority)


def serial(peer: dict[str, object] | None) -> object:
    """What tells a certificate from its renewal."""
    assert peer is not None
    return peer["serialNumber"]


def replace_file(path: Path, content: bytes) -> None:
    """Another file in the place of this one."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)
