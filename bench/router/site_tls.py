"""The certificates of a benchmark's processes, in the folder of their model."""

from __future__ import annotations

from pathlib import Path

from cluster.config.tls import CertificateConfig, InternalTlsConfig, TlsConfig

_AUTHORITY, _CERTIFICATE, _KEY = "authority.pem", "member.pem", "member.key"
_NAMES = ("localhost", "127.0.0.1", "tandem.internal")


def make_certificates(folder: Path) -> str:
    """Make an authority, and one certificate for all processes; returns the authority's file."""
    import trustme  # here, because only the tests' packages have it

    authority = trustme.CA()
    issued = authority.issue_cert(*_NAMES)
    authority.cert_pem.write_to_path(str(folder / _AUTHORITY))
    issued.cert_chain_pems[0].write_to_path(str(folder / _CERTIFICATE))
    issued.private_key_pem.write_to_path(str(folder / _KEY))
    return str(folder / _AUTHORITY)


def tls_of(folder: Path) -> TlsConfig:
    """The section for processes of that folder; empty where it has no certificates."""
    certificate, key = str(folder / _CERTIFICATE), str(folder / _KEY)
    authority = folder / _AUTHORITY
    if not authority.exists():
        return TlsConfig()
    internal = InternalTlsConfig(certificate, key, str(authority))
    return TlsConfig(CertificateConfig(certificate, key), internal)
