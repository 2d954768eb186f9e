"""The receiving side of a replica: its links to the senders, one for each."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass

from engine.errors import DeadlineExceeded, Overloaded, Unavailable
from engine.kv.cache import KvCache
from kv_transfer import metrics
from kv_transfer.config import TransferConfig
from kv_transfer.links.incoming_transfer import OfferedKv, ReceivedKv
from kv_transfer.links.link_stream import MOST_LINK_BYTES, LinkStream
from kv_transfer.links.receiver_link import ReceiverLink
from kv_transfer.links.shared import KvEndpoint, make_shared
from kv_transfer.links.transfer_receiver import Admit
from kv_transfer.transports.selection import open_channel
from kv_transfer.transports.transport import ChannelOpener
from protos import kv_transfer_pb2 as pb
from protos.wire.client import Connector
from protos.wire.streams import FrameStream

__all__ = ["KvReceiver", "OfferedKv", "Peer", "ReceivedKv"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Peer:
    """A sender: its replica id and its address (host:port)."""

    replica: str
    address: str


@dataclass(slots=True, eq=False)
class _Open:
    link: ReceiverLink
    address: str
    task: asyncio.Task[None]


class KvReceiver(KvEndpoint):
    """Receives KV blocks for one replica."""

    def __init__(
        self,
        replica_id: str,
        host: str,
        cache: KvCache,
        config: TransferConfig,
        connector: Connector,
        opener: ChannelOpener = open_channel,
    ) -> None:
        super().__init__(make_shared(cache, config, opener, sends=False))
        self._id = replica_id
        self._host = host
        self._config = config
        self._connector = connector
        self._open: dict[str, _Open] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._generation = 0

    @property
    def idle(self) -> bool:
        """Whether no transfer is expected, on offer or under way."""
        return all(opened.link.idle for opened in self._open.values())

    async def receive(
        self,
        peer: Peer,
        transfer: str,
        admit: Admit,
        timeout_s: float,
    ) -> ReceivedKv:
        """Wait for the offer, get blocks and their generation from `admit`, pull, verify, commit.

        `admit` may be called twice, see `OfferedKv`. A link is opened if there is none. Raises
        TransferFailed if the link broke or was refused, the sender withdrew the KV (Withdrawn), or
        bytes arrived corrupted. Raises DeadlineExceeded after `timeout_s`. Once this has ended, in
        any way, nothing writes to those blocks any more.
        """
        timeout = asyncio.timeout(timeout_s)
        received, outcome = None, "failed"
        try:
            async with timeout:
                received = await self._link_to(peer).receive(transfer, admit)
                outcome = "committed"
                return received
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except TimeoutError:
            if not timeout.expired():
                raise
            message = f"transfer {transfer} from {peer.replica} took longer than {timeout_s:g} s"
            raise DeadlineExceeded(message) from None
        finally:
            metrics.TRANSFERS.inc(outcome=outcome)
            if received is None:
                self.counters.transfers_failed += 1
            else:
                self.counters.transfers_done += 1

    async def open_ahead(self, peer: Peer) -> bool:
        """Open a link to a sender before any transfer needs it; whether it is up.

        Opens none where there is one, or where there are as many as there may be.
        """
        if peer.replica not in self._open and len(self._open) < self._config.max_links:
            link = self._link_to(peer)
            await asyncio.wait({link.settled})
            return link.up and not link.over
        return False

    async def close(self) -> None:
        """End all links and fail all transfers."""
        tasks = {opened.task for opened in self._open.values()} | self._ending
        for opened in self._open.values():
            opened.link.end("the receiver is closing")
        if tasks:
            await asyncio.wait(tasks, timeout=self._config.connect_timeout_s)

    def _link_to(self, peer: Peer) -> ReceiverLink:
        """The link to that sender, which may still be opening; a new link if there is none."""
        opened = self._open.get(peer.replica)
        if opened is not None and opened.address != peer.address:
            self._drop(peer.replica, opened, "the sender has a new address")
            opened = None
        if opened is None or opened.link.over:
            opened = self._open_link(peer)
        self._open[peer.replica] = self._open.pop(peer.replica)
        return opened.link

    def _open_link(self, peer: Peer) -> _Open:
        self._free_capacity(peer)
        # Unique also after a restart under the same replica id.
        self._generation = max(self._generation + 1, time.time_ns())
        link = ReceiverLink(self._shared, self._id, peer.replica, self._host, self._generation)
        opened = _Open(link, peer.address, asyncio.create_task(self._run(link, peer)))
        self._open[peer.replica] = opened
        return opened

    def _free_capacity(self, peer: Peer) -> None:
        """At the bound, end the link that is idle for longest; Overloaded if no link is idle."""
        if len(self._open) < self._config.max_links or peer.replica in self._open:
            return
        for name, opened in self._open.items():
            if opened.link.idle:
                self._drop(name, opened, "idle, and another link is needed")
                return
        raise Overloaded(f"{len(self._open)} links are open, the most there may be")

    def _drop(self, name: str, opened: _Open, reason: str) -> None:
        del self._open[name]
        self._ending.add(opened.task)
        opened.task.add_done_callback(self._ending.discard)
        opened.link.end(reason)

    async def _run(self, link: ReceiverLink, peer: Peer) -> None:
        """Run the link on a connection of its own."""
        stream, connect_s = FrameStream(MOST_LINK_BYTES), self._config.connect_timeout_s
        opening = asyncio.create_task(
            self._connector.connect(peer.address, "link", stream.wire, connect_s)
        )
        messages = LinkStream(stream, pb.SenderMessage, pb.ReceiverMessage, opening)

        async def hang_up() -> None:
            with suppress(Unavailable):
                await messages.end("the receiver closed the link", closed=True)

        try:
            await link.run(messages.read, messages.write, hang_up)
        finally:
            opening.cancel()
            stream.close()
            opened = self._open.get(peer.replica)
            if opened is not None and opened.link is link:
                del self._open[peer.replica]
            await asyncio.gather(opening, return_exceptions=True)
