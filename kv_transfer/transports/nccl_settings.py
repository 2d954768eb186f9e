"""What is set for NCCL before its first communicator, and what its log says that it chose.

torch and NCCL read these variables of the environment. A variable that the operator set stays.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Mapping, MutableMapping
from pathlib import Path

# torch's watchdog would end the process some time after a peer died, and would write dumps. Links
# notice a dead peer themselves. https://pytorch.org/docs/stable/torch_nccl_environment_variables.html
_WATCHDOG = (
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
)
# The older name of the first, which torch reads too.
_OLDER = "NCCL_ASYNC_ERROR_HANDLING"
# Bound: the bytes of NCCL's log that are read after a join.
_MOST_LOG_BYTES = 1 << 20
# As in "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA", or "via P2P/CUMEM".
_VIA = re.compile(r" via ((?:NET/)?\w+)")


def quiet_watchdog(environment: MutableMapping[str, str] = os.environ) -> None:
    """Switch off what ends the process when a communicator fails."""
    for name in _WATCHDOG:
        if not (name.endswith(_OLDER) and _OLDER in environment):
            environment.setdefault(name, "0")


class NcclLog:
    """NCCL's own log of this process, from which the network can be told."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._path: Path | None = None
        self._read = 0
        self._lock = threading.Lock()
        if "NCCL_DEBUG" in environment or "NCCL_DEBUG_FILE" in environment:
            return  # the operator reads it
        self._path = Path(tempfile.mkdtemp(prefix="tandem-collectives-")) / "log"
        environment["NCCL_DEBUG"] = "INFO"
        environment.setdefault("NCCL_DEBUG_SUBSYS", "INIT")
        environment["NCCL_DEBUG_FILE"] = str(self._path)

    def networks(self) -> set[str]:
        """What the connections since the last call go by, as NET/IB, NET/Socket or P2P.

        Empty where the operator has NCCL's log. Joins at the same time may be told together.
        """
        if self._path is None:
            return set()
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    file.seek(self._read)
                    text = file.read(_MOST_LOG_BYTES)
            except OSError:
                return set()
            self._read += len(text)
        return set(_VIA.findall(text.decode(errors="replace")))


def rdma_wanted(
    environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev/infiniband")
) -> str | None:
    """Why RDMA should be used here: a variable of NCCL, or a device in this container; or None."""
    for name in ("NCCL_IB_HCA", "NCCL_NET"):
        value = environment.get(name, "")
        if value and (name == "NCCL_IB_HCA" or value.upper() == "IB"):
            return f"{name}={value}"
    found = sorted(devices.glob("uverbs*"))
    return f"{found[0]} is here" if found else None


def missed_rdma(networks: set[str], wanted: str | None) -> str | None:
    """The warning about a link that should go by RDMA and goes by TCP; None where all is well."""
    if wanted is None or "NET/Socket" not in networks:
        return None
    return (
        f"NCCL goes by TCP (NET/Socket) although RDMA was asked for ({wanted}); "
        "look at the node's memlock limit, its GPUDirect modules, and NCCL_DEBUG=INFO"
    )
