"""A transport that only tests register: the loopback channel with a name and needs of its own."""

from __future__ import annotations

from kv_transfer.transports.loopback import LoopbackChannel
from kv_transfer.transports.transport import Needs


class ToyChannel(LoopbackChannel):
    """Works between host memory and host memory of one process."""

    needs = Needs(one_process=True, device="cpu")
