"""Mutual TLS on a listening socket, on both event loops that processes run on."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from protos.wire.certificates import MemberContexts
from protos.wire.tls import Reloading, member_tls
from protos.wire.tls_listener import TlsListener
from tests.certificates import NAME, Certificates
from tests.eventually import eventually


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_name(request: pytest.FixtureRequest) -> str:
    """The module of an event loop; Ray's processes run on uvloop where it is there."""
    return str(request.param)


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def run(loop_name: str, work: Coroutine[Any, Any, None]) -> None:
    loops = pytest.importorskip(loop_name)
    with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
        runner.run(work)


class _Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class _Member:
    """A server of one member, which echoes."""

    def __init__(self, tls: Reloading[MemberContexts]) -> None:
        self.refused: list[str] = []
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        self.port = sock.getsockname()[1]
        self.listener = TlsListener(sock, _Echo, lambda: tls.get().server, self._refused)

    def _refused(self, reason: str, peer: str) -> None:
        assert peer.startswith("127.0.0.1:")
        self.refused.append(reason)

    async def dial(self, context: ssl.SSLContext | None, name: str = NAME) -> _Dialled:
        named = None if context is None else name
        return _Dialled(
            *await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=context, server_hostname=named
            )
        )

    async def stop(self) -> None:
        self.listener.close()
        await self.listener.wait_closed()


class _Dialled:
    """A connection to a member."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def echoed(self, text: bytes = b"hello") -> bytes:
        """What comes back; nothing where the member hung up."""
        self._writer.write(text)
        try:
            return await self._reader.readexactly(len(text))
        except (OSError, asyncio.IncompleteReadError):
            return b""

    def close(self) -> None:
        self._writer.transport.abort()


def test_members_alone_are_let_in_and_all_others_counted(
    own: Certificates, tmp_path: Path, loop_name: str
) -> None:
    foreign, issued = Certificates(tmp_path, "foreign"), own.issue()
    tls = member_tls(issued.identity, own.authority, NAME)

    def context(*shown: str) -> ssl.SSLContext:
        found = own.trusting()
        if shown:
            found.load_cert_chain(*shown)
        return found

    late, stranger = own.issue(file="late", expired=True), foreign.issue()
    refused = (
        None,
        context(),
        context(late.certificate, late.key),
        context(stranger.certificate, stranger.key),
    )

    async def work() -> None:
        member = _Member(tls)
        dialled = await member.dial(tls.get().client)
        for number, one in enumerate(refused, start=1):
            stranger = await member.dial(one)
            assert await stranger.echoed() == b""
            stranger.close()
            await eventually(lambda: member.refused == ["tls"] * number)  # noqa: B023
        assert await dialled.echoed() == b"hello"
        dialled.close()
        await member.stop()

    run(loop_name, work())


def test_a_member_refuses_a_foreign_server_and_another_name(
    own: Certificates, tmp_path: Path, loop_name: str
) -> None:
    mine = member_tls(own.issue().identity, own.authority, NAME)
    foreign = Certificates(tmp_path, "foreign")
    others = member_tls(foreign.issue().identity, foreign.authority, NAME)

    async def work() -> None:
        impostor, member = _Member(others), _Member(mine)
        with pytest.raises(ssl.SSLCertVerificationError, match=r"local issuer|self.signed"):
            await impostor.dial(mine.get().client)
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await member.dial(mine.get().client, "elsewhere.test")
        await impostor.stop()
        await member.stop()

    run(loop_name, work())


def test_a_renewal_breaks_no_connection(own: Certificates, loop_name: str) -> None:
    tls = member_tls(own.issue().identity, own.authority, NAME, poll_s=0)

    async def work() -> None:
        member, before = _Member(tls), tls.get()
        dialled = [await member.dial(before.client)]
        own.issue()
        dialled.append(await member.dial(tls.get().client))
        assert tls.get() is not before
        # Members that have not read theirs anew yet belong to the cluster, too.
        dialled.append(await member.dial(before.client))
        assert [await one.echoed() for one in dialled] == [b"hello"] * 3
        for one in dialled:
            one.close()
        assert member.refused == []
        await member.stop()

    run(loop_name, work())
