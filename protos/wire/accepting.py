"""Accepts the connections of a listening socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)

# The pause where no connection can be accepted.
_AGAIN_S = 0.1
# Bound: the lack is logged so often at most.
_LOG_EVERY_S = 60.0


async def accept_all(
    listening: socket.socket,
    take: Callable[[socket.socket, str], None],
    make_room: Callable[[], None],
) -> None:
    """Give each connection to `take` with its peer's address, until this is cancelled.

    `listening` must not block. `make_room` is called where no connection can be accepted, as a rule
    because too many files are open. It should close the connection that matters least.
    """
    loop = asyncio.get_running_loop()
    log_from_s = loop.time()
    while True:
        # `loop.sock_accept` would lose the connection where it is cancelled at its end.
        try:
            sock, address = listening.accept()
        except BlockingIOError:
            await _readable(listening)
            continue
        except OSError as error:
            if loop.time() >= log_from_s:
                log.error("no connection can be accepted", extra={"reason": str(error)})
                log_from_s = loop.time() + _LOG_EVERY_S
            make_room()
            await asyncio.sleep(_AGAIN_S)
            continue
        sock.setblocking(False)
        take(sock, f"{address[0]}:{address[1]}")
        # Between two connections the loop does its other work.
        await asyncio.sleep(0)


async def _readable(listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not came.done():
            came.set_result(None)

    loop.add_reader(listening, tell)
    try:
        await came
    finally:
        loop.remove_reader(listening)
