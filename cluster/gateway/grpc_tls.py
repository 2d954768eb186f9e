"""A certificate for gRPC servers that follows its files. gRPC asks for it at each handshake."""

from __future__ import annotations

import grpc

from protos.wire.certificates import ServerCertificate
from protos.wire.tls import Reloading


def reloading_credentials(certificate: Reloading[ServerCertificate]) -> grpc.ServerCredentials:
    """Credentials that show the current certificate; clients need none."""
    shown = certificate.get()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC, from its own threads; None where the last answer holds."""
        nonlocal shown
        found = certificate.get()
        if found is shown:
            return None
        shown = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(_configuration(shown), changed)  # type: ignore[arg-type]  # it may return None


def _configuration(shown: ServerCertificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(shown.key, shown.chain)])
