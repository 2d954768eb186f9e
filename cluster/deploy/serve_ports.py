"""The port on which a Serve replica takes calls of other replicas.

Serve binds it to all addresses and has no setting for it. Ray's token guards the port everywhere.
On one machine it is bound to 127.0.0.1, too.
"""

from __future__ import annotations

import logging
from typing import Any

import ray.util

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_ALL = "[::]:"
_BINDS = "add_port_to_grpc_server"


def bind_to_loopback() -> None:
    """Have Serve bind the port of this process, which is opened later, where Ray's node is."""
    from ray.serve._private import replica

    bind = getattr(replica, _BINDS, None)
    if ray.util.get_node_ip_address() != LOOPBACK:
        return
    if bind is None:
        log.warning("Serve's own port listens on all addresses; Ray's token guards it")
        return

    def bound(server: Any, address: str) -> Any:
        return bind(server, address.replace(_ALL, f"{LOOPBACK}:"))

    setattr(replica, _BINDS, bound)
