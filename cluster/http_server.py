"""Serving an ASGI app with uvicorn inside a running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from cluster.listen import listening_socket


class _Server(uvicorn.Server):
    """Leaves the process's signals alone and says when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, *args: object, **kwargs: object) -> None:
        """Start, then set `ready`."""
        await super().startup(*args, **kwargs)  # type: ignore[arg-type]
        self.ready.set()


class HttpServer:
    """A running HTTP server; `port` is the one it is bound to."""

    def __init__(self, server: _Server, task: asyncio.Task[None], port: int) -> None:
        self.port = port
        self._server = server
        self._task = task

    async def stop(self) -> None:
        """Take no more requests, end running ones after the grace, and wait for the end."""
        self._server.should_exit = True
        await self._task


async def start(
    app: ASGIApp,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    reuse_port: bool = False,
    grace_s: int = 5,
) -> HttpServer:
    """Serve `app`; raises ConfigError where the port is taken."""
    sock = listening_socket(host, port, reuse_port=reuse_port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=grace_s,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    ready = asyncio.create_task(server.ready.wait())
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        ready.cancel()
        await task
    return HttpServer(server, task, sock.getsockname()[1])
