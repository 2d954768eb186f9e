"""A store of torch.distributed where two processes without a link open a channel.

Replicas have none: there the link's control stream carries the values of a store.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed

# Most of the names used here are missing from torch's type stubs.
_dist: Any = torch.distributed


def open_store_server(host: str, timeout_s: float) -> Any:
    """A store on a free port of that address."""
    timeout = timedelta(seconds=timeout_s)
    return _dist.TCPStore(host, 0, None, True, timeout=timeout, wait_for_workers=False)


def open_store_client(host: str, port: int, name: str, timeout_s: float) -> Any:
    """The values of the channel of that name in the store."""
    timeout = timedelta(seconds=timeout_s)
    store = _dist.TCPStore(host, port, None, False, timeout=timeout, wait_for_workers=False)
    return _dist.PrefixStore(name, store)
