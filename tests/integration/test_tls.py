"""A cluster whose every connection is encrypted: clients, calls, links, reports and roles."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from cluster.cli.main import main
from cluster.config.schema import TandemConfig
from cluster.config.tls import TlsConfig
from cluster.replica_record import ReplicaRecord
from cluster.rpc.membership import Membership
from cluster.rpc.role_control import request_role
from engine.errors import Unavailable
from tandem_client import Client, RouterAddress
from tests.certificates import Certificates, serial
from tests.integration.local import OPERATOR_KEY, cluster
from tests.metrics_page import recorded

PROMPT = [number * 7 % 256 for number in range(60)]


@pytest.fixture
def own(tmp_path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def encrypted(config: TandemConfig, own: Certificates) -> TandemConfig:
    issued = own.issue()
    return replace(config, tls=TlsConfig(issued, own.internal(issued)))


async def shown(address: str, own: Certificates) -> object:
    """The serial number of the certificate that a new HTTP connection gets."""

    def shake() -> object:
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), 5) as plain,
            own.trusting().wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            return serial(encrypted.getpeercert())

    return await asyncio.to_thread(shake)


async def answer(client: Client) -> list[int]:
    done = await client.complete(PROMPT, max_tokens=12, ignore_eos=True, temperature=0.0)
    return [token.token for token in done.choices[0].tokens]


async def test_the_answers_are_the_same_with_and_without_tls(
    config: TandemConfig,
    encrypted: TandemConfig,
    own: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TANDEM_OPERATOR_KEY", OPERATOR_KEY)
    async with cluster(config) as local:
        plain = await answer(local.client)
    async with cluster(encrypted) as local:
        address = RouterAddress.at(local.router.grpc_address, own.authority)
        async with Client(address) as client:
            assert await answer(client) == plain
        await local.idle()
        tls = ["--address", local.router.grpc_address, "--tls-ca", own.authority]
        assert await asyncio.to_thread(main, ["status", *tls]) == 0
        with pytest.raises(Unavailable):
            await answer(local.client)  # it speaks no TLS


async def test_a_renewal_breaks_no_stream_and_serves_the_next(
    encrypted: TandemConfig, own: Certificates
) -> None:
    async with cluster(encrypted) as local:
        address = RouterAddress.at(local.router.grpc_address, own.authority)
        async with Client(address) as client:
            stream = client.generate(PROMPT, max_tokens=64, ignore_eos=True)
            await anext(stream)
            before = await shown(local.router.http_address, own)
            own.issue()
            async with asyncio.timeout(30):
                while await shown(local.router.http_address, own) == before:
                    pass  # the files are looked at once a second
            assert len([event async for event in stream]) > 1
            assert await answer(client)
        async with Client(address) as client:  # a new connection
            assert await answer(client)


async def test_a_member_needs_a_certificate_beside_the_secret(
    config: TandemConfig, encrypted: TandemConfig, own: Certificates, tmp_path
) -> None:
    foreign = Certificates(tmp_path, "foreign").internal()
    with recorded() as seen:
        async with cluster(encrypted) as local:
            decode: ReplicaRecord
            (decode,) = [one for one in await local.directory.members() if one.role == "decode"]
            for stranger in (config, replace(config, tls=TlsConfig(internal=foreign))):
                with pytest.raises(Unavailable):
                    await request_role(Membership.of(stranger).connector(), decode, "decode")
            member = Membership.of(encrypted).connector()
            assert await request_role(member, decode, "decode") == "decode"
        # The second one hung up by itself, because it trusts another authority.
        assert seen.value("tandem_refused_connections_total", listener="internal") == 2
