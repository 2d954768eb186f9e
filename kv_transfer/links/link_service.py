"""The sender's service for links: accepts or refuses links, and has the open ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kv_transfer.errors import LinkClosed, LinkRefused
from kv_transfer.links import proto_convert as wire
from kv_transfer.links.link_stream import LinkStream
from kv_transfer.links.sender_link import SenderLink
from kv_transfer.links.shared import Shared
from kv_transfer.transports.same_host import separation_from
from kv_transfer.transports.selection import (
    PROCESS,
    TransportChoice,
    TransportSide,
    choose,
    device_name,
)
from protos import kv_transfer_pb2 as pb
from protos.wire.streams import FrameStream

_log = logging.getLogger(__name__)
# Bound: the wait for the links to end when the service closes.
_CLOSE_S = 2.0


class LinkService:
    """Opens a link for each receiver that calls, at most one at a time per receiver.

    `on_up(link)` is called when the link can carry offers, or else `on_refused(receiver, reason)`.
    """

    def __init__(
        self,
        replica_id: str,
        host: str,
        shared: Shared,
        on_up: Callable[[SenderLink], None],
        on_refused: Callable[[str, LinkRefused], None],
    ) -> None:
        self._id = replica_id
        self._host = host
        self._shared = shared
        self._on_up = on_up
        self._on_refused = on_refused
        self._links: dict[str, SenderLink] = {}
        self._running = False

    def start(self) -> None:
        """Accept links from now on."""
        self._running = True

    def up(self, receiver: str) -> SenderLink | None:
        """The link to that receiver if it can carry offers."""
        link = self._links.get(receiver)
        return link if link is not None and link.up and not link.over else None

    @property
    def idle(self) -> bool:
        """Whether no link carries a transfer or an offer."""
        return all(link.idle for link in self._links.values())

    async def close(self) -> None:
        """End all links, and refuse new links."""
        self._running = False
        for link in self._links.values():
            link.end("the sender is closing")
        for _ in range(int(_CLOSE_S / 0.01)):
            if not self._links:
                break
            await asyncio.sleep(0.01)

    async def serve(self, stream: FrameStream) -> None:
        """Serve one link for as long as its receiver keeps it. Raises Unavailable when it broke."""
        messages = LinkStream(stream, pb.ReceiverMessage, pb.SenderMessage)
        try:
            async with asyncio.timeout(self._shared.config.connect_timeout_s):
                first = await messages.read()
        except TimeoutError:
            return
        if first is None or first.WhichOneof("message") != "hello":
            return
        hello = first.hello
        try:
            link = self._open(hello)
        except LinkRefused as refusal:
            _log.warning("link to %s refused: %s", hello.receiver, refusal.message)
            self._shared.counters.links_refused += 1
            if hello.receiver not in self._links:
                self._on_refused(hello.receiver, refusal)
            refuse = pb.RefuseLink(reason=refusal.message)
            await messages.write(wire.to_receiver(refuse=refuse))
            await messages.end(refusal.message)
            return
        behind = list(first.more)

        async def read_on() -> pb.ReceiverMessage | None:
            return behind.pop(0) if behind else await messages.read()

        try:
            reason = await link.run(read_on, messages.write)
            await messages.end(reason.message, closed=isinstance(reason, LinkClosed))
        finally:
            if self._links.get(link.receiver) is link:
                del self._links[link.receiver]

    def _open(self, hello: pb.Hello) -> SenderLink:
        """A new link for that receiver, which ends its older link; LinkRefused has the reason."""
        choice = self._check(hello)
        existing = self._links.get(hello.receiver)
        if existing is not None:
            existing.end("the receiver opened a newer link")
        config = self._shared.config
        frame_bytes = min(config.frame_bytes, hello.frame_bytes)
        link = SenderLink(
            self._shared,
            hello.receiver,
            hello.generation,
            choice.transport,
            self._host,
            frame_bytes,
            self._on_up,
        )
        extent = self._shared.lender.extent() if link.is_mapped else None
        blocks = self._shared.cache.blocks
        link.welcome(
            pb.Welcome(
                sender=self._id,
                protocol=wire.PROTOCOL,
                channel=link.channel,
                transport=link.transport,
                frame_bytes=frame_bytes,
                cache=wire.cache_to_proto(extent, blocks) if extent else None,
            )
        )
        self._links[hello.receiver] = link
        _log.info("link to %s opens by %s: %s", hello.receiver, choice.transport, choice.why)
        return link

    def _check(self, hello: pb.Hello) -> TransportChoice:
        config, cache = self._shared.config, self._shared.cache
        if not self._running:
            raise LinkRefused("the sender is not running")
        if hello.protocol != wire.PROTOCOL:
            raise LinkRefused(f"protocol: {wire.PROTOCOL} here, {hello.protocol} there")
        difference = cache.layout.difference(wire.layout_from_proto(hello.layout))
        if difference is not None:
            raise LinkRefused(f"layout: {difference}")
        existing = self._links.get(hello.receiver)
        if existing is not None and hello.generation <= existing.generation:
            raise LinkRefused(f"generation {hello.generation} is not newer than the link's")
        if existing is None and len(self._links) >= config.max_links:
            raise LinkRefused(f"{len(self._links)} links are open, the most there may be")
        here = TransportSide(config.transport, device_name(cache.device), PROCESS)
        there = TransportSide(hello.transport, hello.device, hello.process)
        return choose(here, there, separation_from(wire.witness_from_proto(hello.witness)))
