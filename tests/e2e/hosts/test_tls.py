"""TLS on several hosts: strangers of the network are refused and counted, certificates renewed."""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
import ssl
import urllib.request
from contextlib import suppress

import httpx
import pytest

from cluster.api import Tokens
from engine.errors import Unavailable
from protos.wire.handshake import ANSWER_BYTES, PROOF_BYTES, hello, new_nonce
from tandem_client import Client
from tandem_client.router_address import RouterAddress
from tests import exactness
from tests.certificates import NAME, Certificates, serial
from tests.e2e.crowd import answer, crowd
from tests.eventually import eventually, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

HTTP_PORT, GRPC_PORT, METRICS_PORT = 8000, 50051, 8080
TIMEOUT_S = 10
# Certificates are looked at once a second; Ray's exporter sends every few seconds.
RENEWED_S, COUNTED_S = 60, 60
SHORT = {"max_tokens": 2, "timeout_s": 30}


@pytest.fixture(scope="module")
def certificates(cluster, tmp_path_factory):
    """The files of the cluster's certificates, `front` and `member`."""
    made = Certificates(tmp_path_factory.mktemp("tls"))
    renew(made, cluster)
    return made


@pytest.fixture(scope="module")
def long(model):
    """A stream that outlives a renewal."""
    return exactness.random_case(model, 1, 20, 1900)


@pytest.fixture(scope="module")
def router(cluster, certificates):
    """The router of the application with TLS, which takes the place of the one without."""
    front, internal = renew(certificates, cluster)
    gone = {"applications": []}
    assert cluster.ask("/api/serve/applications/", gone) is not None
    cluster.until(lambda: cluster.application() == "", 60, "the end of the application")
    cluster.authority = certificates.authority
    cluster.deploy({"tls.front_ends": front, "tls.internal": internal})
    yield RouterAddress.at(cluster.grpc, certificates.authority)
    cluster.authority = None


def renew(certificates, cluster):
    """New certificates in the same files; returns the two sections of the configuration."""
    front = certificates.issue(cluster.host("router").address, file="front")
    member = certificates.internal(certificates.issue(NAME))
    pair = {"certificate": front.certificate, "key": front.key}
    own = {"certificate": member.certificate, "key": member.key, "authority": member.authority}
    return pair, own


async def test_strangers_are_refused_and_counted(cluster, router, certificates, cases, model):
    await cluster.whole()
    async with Client(router) as client:
        answers = await crowd(client, cases[:12], 4)
    assert exactness.equal(model, cases[:12], [tokens for tokens, _ in answers])

    address = await member(cluster)
    foreign = Certificates(certificates.folder, "foreign")
    expired = certificates.issue(NAME, file="expired", expired=True)
    said = hello("calls", new_nonce())
    shown = (None, foreign.issue(NAME), expired)
    for tls in (None, *(context(certificates, one) for one in shown)):
        assert await asyncio.to_thread(reply, address, tls, said) == b""
    # The holder of a certificate without the secret gets the server's proof, and no further.
    own = context(certificates, certificates.issue(NAME, file="other"))
    proof = secrets.token_bytes(PROOF_BYTES)
    assert len(await asyncio.to_thread(reply, address, own, said, proof)) == ANSWER_BYTES
    await asyncio.to_thread(
        wait_until,
        lambda: refused(cluster, "tls") >= 4 and refused(cluster, "secret"),
        COUNTED_S,
        1.0,
    )
    await cluster.idle()


async def test_front_ends_refuse_plain_connections(cluster, router, certificates):
    host = cluster.host("router").address
    get = b"GET /v1/models HTTP/1.1\r\nHost: tandem\r\n\r\n"
    assert await asyncio.to_thread(reply, f"{host}:{HTTP_PORT}", None, get) == b""
    assert await asyncio.to_thread(reply, f"{host}:{GRPC_PORT}", None, get) == b""
    foreign = Certificates(certificates.folder, "unknown")
    for port in (HTTP_PORT, GRPC_PORT):  # the client does not trust the server
        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(presented, f"{host}:{port}", foreign.trusting())
    for address in (cluster.grpc, RouterAddress.at(cluster.grpc, foreign.authority)):
        async with Client(address) as client:
            with pytest.raises(Unavailable):
                await client.complete([1] * 20, **SHORT)
    async with httpx.AsyncClient(verify=certificates.trusting()) as http:
        page = (await http.get(f"https://{host}:{HTTP_PORT}/metrics")).text
    assert counted(page, "http", "tls") >= 2


async def test_certificates_are_renewed_under_a_stream(cluster, router, certificates, long, model):
    host, address = cluster.host("router").address, await member(cluster)
    front = certificates.trusting()
    own = context(certificates, certificates.issue(NAME, file="other"))
    ends = {f"{host}:{HTTP_PORT}": front, f"{host}:{GRPC_PORT}": front, address: own}
    before = {end: presented(end, tls) for end, tls in ends.items()}
    began, tokens = asyncio.Event(), []

    async def read(client):
        async for event in client.generate(
            list(long.prompt), max_tokens=1900, temperature=0, ignore_eos=True, timeout_s=240
        ):
            if isinstance(event, Tokens):
                assert event.index == len(tokens)
                tokens.extend(event.ids)
                began.set()

    async with Client(router) as client:
        stream = asyncio.create_task(read(client))
        await asyncio.wait_for(began.wait(), RENEWED_S)
        renew(certificates, cluster)
        for end, tls in ends.items():
            await eventually(
                lambda end=end, tls=tls: presented(end, tls) != before[end], RENEWED_S, 0.1
            )
        assert not stream.done()
        async with Client(router) as new:
            assert (await new.complete([1] * 20, **SHORT)).text is not None
        await stream
        assert exactness.equal(model, [long], [tuple(tokens)])
        # Connections from before and from after it serve.
        got, _ = await answer(client, long)
    assert exactness.equal(model, [long], [got])
    await cluster.idle()


async def member(cluster):
    """The address of the decode replica."""
    return next(one.address for one in await cluster.replicas() if one.role == "decode")


def context(certificates, shown):
    """A client's context that trusts the members' authority, and shows this certificate."""
    made = certificates.trusting()
    made.check_hostname = False
    if shown is not None:
        made.load_cert_chain(shown.certificate, shown.key)
    return made


def connected(address, tls):
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host, int(port)), TIMEOUT_S)
    return plain if tls is None else tls.wrap_socket(plain, server_hostname=host)


def reply(address, tls, *messages):
    """What the server says to messages until it hangs up; a timeout fails the test."""
    said = b""
    with suppress(ssl.SSLError, ConnectionError), connected(address, tls) as sock:
        for message in messages:
            sock.sendall(message)
            while more := sock.recv(1 << 16):
                said += more
                if len(messages) > 1 and message is not messages[-1]:
                    break
    return said


def presented(address, tls):
    """The serial number of the certificate that a new connection sees."""
    with connected(address, tls) as sock:
        return serial(sock.getpeercert())


def counted(page, listener, reason):
    rows = re.findall(r"tandem_refused_connections_total\{(.*)\} (\S+)", page)
    labels = (f'listener="{listener}"', f'reason="{reason}"')
    return sum(float(value) for found, value in rows if all(one in found for one in labels))


def refused(cluster, reason):
    """The count of the decode replica, as Ray exports it from its host."""
    url = f"http://{cluster.host('decode').address}:{METRICS_PORT}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as page:
            return counted(page.read().decode(), "internal", reason)
    except OSError:
        return 0.0
