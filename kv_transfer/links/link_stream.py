"""The control stream of a link as a proved connection carries it."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError

from kv_transfer.errors import LinkBroken, LinkClosed
from protos import kv_transfer_pb2 as pb
from protos.wire.streams import FrameStream

# A bound: 64 messages that leave together, each an offer of a long context's blocks.
MOST_LINK_BYTES = 16 << 20

In = TypeVar("In", pb.SenderMessage, pb.ReceiverMessage)
Out = TypeVar("Out", pb.SenderMessage, pb.ReceiverMessage)


class LinkStream(Generic[In, Out]):
    """Reads messages of one class and writes those of the other, once `opening` is done.

    All methods raise Unavailable when the connection has ended or cannot be opened.
    """

    def __init__(
        self,
        stream: FrameStream,
        reads: type[In],
        writes: type[Out],
        opening: asyncio.Future[None] | None = None,
    ) -> None:
        self._stream = stream
        self._reads: type[In] = reads
        self._writes: type[Out] = writes
        self._opening = opening

    async def read(self) -> In | None:
        """The next message; None where the peer has ended its side without a reason.

        Raises LinkClosed with the reason of an end on purpose, and LinkBroken with that of another
        one, or for a message that cannot be read.
        """
        await self._opened()
        try:
            message = self._reads.FromString(await self._stream.read())
        except DecodeError:
            raise LinkBroken("a message that cannot be read") from None
        if message.WhichOneof("message") != "end":
            return message
        if message.end.closed:
            raise LinkClosed(message.end.reason)
        if message.end.reason:
            raise LinkBroken(message.end.reason)
        return None

    async def write(self, message: Out) -> None:
        """Send a message, and wait while the peer takes none."""
        await self._opened()
        await self._stream.write(message.SerializeToString())

    async def end(self, reason: str, *, closed: bool = False) -> None:
        """Send the last message of this side, `closed` if it ends on purpose.

        The sender of KV closes the connection behind it.
        """
        await self.write(self._writes(end=pb.LinkEnd(reason=reason, closed=closed)))

    async def _opened(self) -> None:
        if self._opening is not None:
            await asyncio.wait({self._opening})
            self._opening.result()
