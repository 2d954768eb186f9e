"""The sending side of a replica: the KV on offer to its receivers."""

from __future__ import annotations

import logging
from dataclasses import replace

from engine.errors import Internal, Overloaded, TransferFailed
from engine.kv.cache import KvCache
from kv_transfer.aio.bounded_map import BoundedMap
from kv_transfer.aio.waits import fail, settle
from kv_transfer.config import TransferConfig
from kv_transfer.errors import LinkRefused, Withdrawn
from kv_transfer.links.hand_over import HandOver
from kv_transfer.links.link_service import LinkService
from kv_transfer.links.outgoing_transfer import OutgoingKv, OutgoingTransfer
from kv_transfer.links.sender_link import SenderLink
from kv_transfer.links.shared import KvEndpoint, make_shared
from kv_transfer.transports.selection import open_channel
from kv_transfer.transports.transport import ChannelOpener
from protos.wire.streams import FrameStream

__all__ = ["HandOver", "KvSender", "OutgoingKv"]

_log = logging.getLogger(__name__)
_Key = tuple[str, str]  # receiver, transfer


class KvSender(KvEndpoint):
    """Hands the KV blocks of one replica over to the receivers that link with it."""

    def __init__(
        self,
        replica_id: str,
        host: str,
        cache: KvCache,
        config: TransferConfig,
        opener: ChannelOpener = open_channel,
    ) -> None:
        super().__init__(make_shared(cache, config, opener, sends=True))
        self._cache = cache
        self._links = LinkService(replica_id, host, self._shared, self._link_up, self._refused)
        self._waiting: dict[_Key, OutgoingTransfer] = {}
        self._withdrawn: BoundedMap[_Key, str] = BoundedMap(config.max_transfers)

    @property
    def idle(self) -> bool:
        """Whether no hand-over is on offer or under way."""
        return not self._waiting and self._links.idle

    def start(self) -> None:
        """Accept links from now on."""
        self._links.start()

    async def serve_link(self, stream: FrameStream) -> None:
        """Serve a receiver's connection for `link`. Raises Unavailable when it broke."""
        await self._links.serve(stream)

    async def hand_over(self, kv: OutgoingKv, timeout_s: float) -> int:
        """Offer complete KV and send it when it is pulled; returns the bytes sent after the commit.

        Raises as `HandOver.committed`. Afterwards this side no longer reads the blocks.
        """
        handing = self.begin(kv)
        try:
            return await handing.committed(timeout_s)
        finally:
            await handing.close("the hand-over was cancelled")

    def begin(self, kv: OutgoingKv) -> HandOver:
        """Offer KV, which may still be computed; this side reads its blocks until `close`.

        The receiver's link may open before or after. A new attempt needs a new transfer id.
        """
        outgoing = OutgoingTransfer(self._checked(kv), len(self._cache.layout.layers))
        key = (kv.receiver, kv.transfer)
        self._waiting[key] = outgoing
        self._withdrawn.pop(key)
        link = self._links.up(kv.receiver)
        if link is not None:
            link.offer(outgoing)
        return HandOver(outgoing, self._cache.layout, self._progress, self._end)

    async def withdraw(self, transfer: str, receiver: str, reason: str) -> None:
        """Tell the receiver that this KV will not come; its `receive` raises Withdrawn."""
        outgoing = self._waiting.get((receiver, transfer))
        if outgoing is not None:
            fail(outgoing.finished, Withdrawn(reason))
        else:
            self._withdraw(receiver, transfer, reason)

    async def close(self) -> None:
        """End all links and fail all hand-overs."""
        await self._links.close()
        for outgoing in list(self._waiting.values()):
            fail(outgoing.finished, TransferFailed("the sender is closing"))

    def _checked(self, offer: OutgoingKv) -> OutgoingKv:
        needed = self._cache.layout.blocks_for(offer.tokens)
        if not 0 < needed <= len(offer.blocks):
            raise Internal(f"{offer.tokens} tokens need {needed} blocks, not {len(offer.blocks)}")
        if (offer.receiver, offer.transfer) in self._waiting:
            raise Internal(f"transfer {offer.transfer} is handed over already")
        if len(self._waiting) >= self._shared.config.max_links * self._shared.config.max_transfers:
            raise Overloaded(f"{len(self._waiting)} hand-overs are waiting")
        return replace(offer, blocks=offer.blocks[:needed])

    def _progress(self, outgoing: OutgoingTransfer) -> None:
        link = self._links.up(outgoing.kv.receiver)
        if link is not None:
            link.progress(outgoing)

    async def _end(self, outgoing: OutgoingTransfer, reason: str) -> None:
        key = (outgoing.kv.receiver, outgoing.kv.transfer)
        if self._waiting.get(key) is not outgoing:
            return
        del self._waiting[key]
        if outgoing.borrowed is not None:
            self._shared.lender.end(outgoing.borrowed)
        self._finish(outgoing, reason)
        await settle([outgoing.guard.shut()])

    def _finish(self, outgoing: OutgoingTransfer, reason: str) -> None:
        kv = outgoing.kv
        if outgoing.committed:
            self.counters.transfers_done += 1
            _log.debug("transfer %s to %s: committed", kv.transfer, kv.receiver)
        else:
            self.counters.transfers_failed += outgoing.first_token is not None
            _log.info("transfer %s to %s: %s", kv.transfer, kv.receiver, reason)
            fail(outgoing.finished, Withdrawn(reason))
            self._withdraw(kv.receiver, kv.transfer, reason)
        link = self._links.up(kv.receiver)
        # Also after a commit, so that the link's table does not grow with every transfer.
        if link is not None:
            link.forget(outgoing)

    def _withdraw(self, receiver: str, transfer: str, reason: str) -> None:
        link = self._links.up(receiver)
        if link is not None:
            link.withdraw(transfer, reason)
        else:
            self._withdrawn.add((receiver, transfer), reason)

    def _link_up(self, link: SenderLink) -> None:
        for key, reason in self._withdrawn.items():
            if key[0] == link.receiver:
                self._withdrawn.pop(key)
                link.withdraw(key[1], reason)
        for outgoing in self._waiting.values():
            # The new link would keep a transfer that is committed and not yet closed for ever.
            if outgoing.kv.receiver == link.receiver and not outgoing.ended:
                link.offer(outgoing)

    def _refused(self, receiver: str, refusal: LinkRefused) -> None:
        for outgoing in self._waiting.values():
            if outgoing.kv.receiver == receiver:
                fail(outgoing.finished, LinkRefused(refusal.message))
