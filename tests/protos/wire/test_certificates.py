"""Certificates that do not fit together are found when they are read, by the file's name."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from engine.errors import ConfigError
from protos.wire.certificates import Identity, client_context, member_contexts, server_certificate
from tests.certificates import NAME, Certificates


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_a_good_certificate_has_a_name_and_an_end(own: Certificates) -> None:
    shown = server_certificate(own.issue("*.tandem.test").identity)
    assert shown.name == "any.tandem.test"
    assert shown.chain.startswith(b"-----BEGIN CERTIFICATE")
    assert shown.expires.endswith("GMT")
    issued = own.issue()
    assert member_contexts(issued.identity, own.authority, NAME).expires.endswith("GMT")


def test_a_file_that_is_not_there_is_named(own: Certificates) -> None:
    issued = own.issue()
    for certificate, key in (("/no/a.pem", issued.key), (issued.certificate, "/no/a.key")):
        with pytest.raises(ConfigError, match=r"^/no/a\.(pem|key): cannot be read: No such file"):
            server_certificate(Identity(certificate, key))
    with pytest.raises(ConfigError, match=r"^/no/ca: cannot be read"):
        member_contexts(issued.identity, "/no/ca", NAME)
    with pytest.raises(ConfigError, match=r"^/no/ca: cannot be read"):
        client_context("/no/ca")


def test_files_of_another_content_are_named_without_it(own: Certificates, tmp_path: Path) -> None:
    issued, text = own.issue(), tmp_path / "text"
    text.write_text("BEGIN SECRET")
    broken = str(text)
    with pytest.raises(ConfigError, match="text: holds no certificate in PEM form"):
        server_certificate(Identity(broken, issued.key))
    with pytest.raises(ConfigError, match="text: holds no certificate in PEM form"):
        client_context(broken)
    with pytest.raises(ConfigError, match="text: holds no key in PEM form") as caught:
        server_certificate(Identity(issued.certificate, broken))
    assert "SECRET" not in str(caught.value)


def test_the_key_of_another_certificate_is_refused(own: Certificates) -> None:
    issued, other = own.issue(), own.issue(file="other")
    with pytest.raises(ConfigError, match=r"other\.key: is not the key of .*member\.pem"):
        server_certificate(Identity(issued.certificate, other.key))


def test_an_encrypted_key_is_refused_and_no_terminal_asked(own: Certificates) -> None:
    issued = own.issue()
    key = serialization.load_pem_private_key(Path(issued.key).read_bytes(), None)
    form = serialization.BestAvailableEncryption(b"secret")
    Path(issued.key).write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form)
    )
    with pytest.raises(ConfigError, match="or an encrypted one"):
        server_certificate(issued.identity)


def test_an_expired_certificate_is_refused(own: Certificates) -> None:
    issued = own.issue(expired=True)
    with pytest.raises(ConfigError, match=r"member\.pem: certificate has expired"):
        server_certificate(issued.identity)
    with pytest.raises(ConfigError, match=r"member\.pem: certificate has expired"):
        member_contexts(issued.identity, own.authority, NAME)


def test_another_authority_or_name_is_refused(own: Certificates, tmp_path: Path) -> None:
    foreign = Certificates(tmp_path, "foreign")
    with pytest.raises(ConfigError, match=r"member\.pem: .*(issuer|self.signed)"):
        member_contexts(own.issue().identity, foreign.authority, NAME)
    with pytest.raises(ConfigError, match=r"member\.pem: Hostname mismatch"):
        member_contexts(own.issue("elsewhere.test").identity, own.authority, NAME)


def test_a_certificate_for_servers_alone_is_no_members(tmp_path: Path) -> None:
    """A member dials, too; trustme's certificates are for both, so one is made here."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority = trustme.CA()
    signer = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "member")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    )
    files = [tmp_path / name for name in ("ca.pem", "server.pem", "server.key")]
    files[0].write_bytes(authority.cert_pem.bytes())
    files[1].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[2].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    identity = Identity(str(files[1]), str(files[2]))
    server_certificate(identity)
    with pytest.raises(ConfigError, match=r"server\.pem: .*purpose"):
        member_contexts(identity, str(files[0]), NAME)
