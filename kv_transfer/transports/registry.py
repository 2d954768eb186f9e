"""The transports, one line each, in the order in which `auto` prefers them.

To add a transport, write a subclass of `Channel` (`transport.py`) in a file or folder of its own.
Add a line here before the last one: the last transport needs nothing and fits every pair. A line
holds the path of the class, so that the configuration knows the names without loading torch.
"""

from __future__ import annotations

import difflib
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from kv_transfer.errors import LinkRefused

if TYPE_CHECKING:
    from kv_transfer.transports.transport import Channel

AUTO = "auto"
TRANSPORTS: dict[str, str] = {
    "loopback": "kv_transfer.transports.loopback:LoopbackChannel",
    "cuda_ipc": "kv_transfer.transports.cuda_ipc:CudaIpcChannel",
    "nccl": "kv_transfer.transports.nccl:NcclChannel",
    "shared_memory": "kv_transfer.transports.shared_memory:SharedMemoryChannel",
    "nixl": "kv_transfer.transports.nixl.channel:NixlChannel",
    "gloo": "kv_transfer.transports.gloo:GlooChannel",
}
# The transports that `auto` never takes: they have not run on the hardware that they are meant for.
BY_NAME_ONLY = frozenset({"nixl"})

# The transports whose bytes leave no host, so that only processes of the same user can read them.
WITHIN_A_HOST = frozenset({"loopback", "cuda_ipc", "shared_memory"})

# The transports by which whoever reaches a port may read and write all memory of a replica.
OPENS_MEMORY = frozenset({"nixl"})


def configurable_names() -> tuple[str, ...]:
    """The values that `kv.transport` may have."""
    return (AUTO, *TRANSPORTS)


def name_problem(name: str) -> str | None:
    """Why `kv.transport` cannot have that value, with the nearest valid one; None if it can."""
    names = configurable_names()
    if name in names:
        return None
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"transport: expected one of {', '.join(names)}, not {name!r}{hint}"


def channel_class(name: str) -> type[Channel]:
    """The class of that transport; LinkRefused if the registry does not have the name."""
    if name not in TRANSPORTS:
        raise LinkRefused(f"transport: {name!r} is unknown here")
    found: type[Channel] = resolve_name(TRANSPORTS[name])
    return found


def candidates(configured: str) -> dict[str, type[Channel]]:
    """The transports that a replica with that `kv.transport` may use, by preference."""
    chosen = [name for name in TRANSPORTS if name not in BY_NAME_ONLY]
    names = chosen if configured == AUTO else [configured]
    return {name: channel_class(name) for name in names}
