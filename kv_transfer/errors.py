"""The errors of KV transfers, as branches of `TransferFailed`."""

from __future__ import annotations

from engine.errors import TransferFailed


class LinkBroken(TransferFailed):
    """The link is over and all its transfers have failed; the next use opens a new link."""


class LinkClosed(LinkBroken):
    """Either side ended the link on purpose."""


class LinkRefused(TransferFailed):
    """The peer refuses a link with this replica; the message has the reason."""


class ChannelBroken(LinkBroken):
    """The data channel failed or ran out of time; its link ends with it."""


class Withdrawn(TransferFailed):
    """The sender will not send this KV; the message has the reason."""


class ChecksumMismatch(TransferFailed):
    """The bytes that arrived differ from the bytes that were sent; none of them was written."""
