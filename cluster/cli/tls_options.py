"""The option that names the authority of a server's certificate."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from engine.errors import ConfigError

if TYPE_CHECKING:
    from tandem_client.router_address import RouterAddress

_VARIABLE = "TANDEM_TLS_CA"


def add_tls(parser: argparse.ArgumentParser) -> None:
    """Add `--tls-ca`."""
    parser.add_argument(
        "--tls-ca",
        metavar="FILE",
        help=f"use TLS, and trust this authority alone (PEM; default: {_VARIABLE})",
    )


def tls_ca(options: argparse.Namespace) -> str | None:
    """The file that was given, or that of the environment; ConfigError if it has no certificate."""
    found: str | None = options.tls_ca or os.environ.get(_VARIABLE) or None
    if found is not None:
        from tandem_client.authorities import read_authority

        try:
            read_authority(found)
        except ConfigError as error:
            raise ConfigError(f"--tls-ca (or {_VARIABLE}): {error.message}") from None
    return found


def router_addresses(options: argparse.Namespace) -> list[RouterAddress]:
    """The addresses of `--address`: one, or for some commands `several`; raises ConfigError."""
    from tandem_client.router_address import RouterAddress

    authority = tls_ca(options)
    found = options.address.split(",") if options.several else [options.address]
    return [RouterAddress.at(one, authority) for one in found]
