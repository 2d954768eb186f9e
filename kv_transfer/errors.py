"""What can go wrong while KV moves, as branches of `TransferFailed`."""

from __future__ import annotations

from engine.errors import TransferFailed


class LinkBroken(TransferFailed):
    """The link is over and everything on it has failed; the next use makes a new one."""


class LinkClosed(LinkBroken):
    """One of the two sides ended the link on purpose."""


class LinkRefused(TransferFailed):
    """The other side will not link with this replica; the message names why."""


class ChannelBroken(LinkBroken):
    """The data channel failed or ran out of time; it is thrown away whole."""


class Withdrawn(TransferFailed):
    """The sender says that this KV will never come, and why."""


class ChecksumMismatch(TransferFailed):
    """The bytes that arrived are not those that were sent; none of them was written."""
