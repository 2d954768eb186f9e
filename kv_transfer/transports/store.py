"""The store where the two ends of a channel find each other (torch.distributed's TCPStore)."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch.distributed

from kv_transfer.transports.transport import ChannelSpec

# Most of the names used here are missing from torch's type stubs.
_dist: Any = torch.distributed


def open_store_server(host: str, timeout_s: float) -> Any:
    """The store of one sender, listening on a free port of that address only."""
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        # The store has no authentication, so it must not listen on all addresses.
        listener.bind(address)
        listener.listen(128)
        port = listener.getsockname()[1]
        return _dist.TCPStore(
            host,
            port,
            None,
            True,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )


def open_store_client(spec: ChannelSpec) -> Any:
    """The channel's own namespace in the sender's store."""
    timeout = timedelta(seconds=spec.timeout_s)
    store = _dist.TCPStore(
        spec.store_host, spec.store_port, None, False, timeout=timeout, wait_for_workers=False
    )
    return _dist.PrefixStore(spec.prefix, store)
