"""One process of the section on channels between two processes; it answers commands by lines.

Each process poses as a host of its own for NCCL, so two of them share a GPU. The channels are those
of the product: NCCL on a GPU, Gloo on a CPU. Commands come as JSON lines on stdin, and each answer
is a JSON line on stdout:

- `join`: open a channel to the other process, by name and rank.
- `send`, `receive`: move bytes on a channel, and tell how long it took.
- `ping`: tell that the process lives.
- `stop`: close all channels and end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from engine.errors import first_line
from kv_transfer.errors import ChannelBroken
from kv_transfer.transports.gloo import GlooChannel
from kv_transfer.transports.nccl import NcclChannel
from kv_transfer.transports.transport import Channel, ChannelSpec

HOST = "127.0.0.1"
# Bound: seconds to join, and of one message.
JOIN_S, MOVE_S = 60.0, 20.0

# Most of the names used here are missing from torch's type stubs.
_dist: Any = torch.distributed


def resident_bytes() -> int:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class ChannelPeer:
    """The channels of this process, on one device."""

    def __init__(self, device: torch.device, port: int) -> None:
        self._device = device
        self._port = port
        self._channels: dict[str, Channel] = {}

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do what the command says; the answer has an `error` where a channel is broken."""
        began_s = time.perf_counter()
        try:
            told = getattr(self, f"_{command.pop('do')}")(**command)
        except (ChannelBroken, RuntimeError) as error:
            told = {"error": first_line(error)[:200]}
        return {"seconds": time.perf_counter() - began_s, **told}

    def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            channel.close()

    def _join(self, name: str, rank: int, timeout_s: float = MOVE_S) -> dict[str, Any]:
        before = self._free_bytes()
        timeout = timedelta(seconds=JOIN_S)
        store = _dist.TCPStore(
            HOST, self._port, None, False, timeout=timeout, wait_for_workers=False
        )
        on_gpu = self._device.type == "cuda"
        kind: type[Channel] = NcclChannel if on_gpu else GlooChannel
        transport = "nccl" if on_gpu else "gloo"
        values = _dist.PrefixStore(name, store)
        spec = ChannelSpec(transport, name, rank, HOST, self._device, timeout_s, values)
        self._channels[name] = kind(spec)
        return {"transport": transport, "taken_bytes": before - self._free_bytes()}

    def _send(self, name: str, size: int, timeout_s: float = MOVE_S) -> dict[str, Any]:
        buffer = torch.full((size,), 7, dtype=torch.uint8, device=self._device)
        self._channels[name].send(buffer)(timeout_s)
        return {}

    def _receive(self, name: str, size: int, timeout_s: float = MOVE_S) -> dict[str, Any]:
        into = torch.zeros(size, dtype=torch.uint8, device=self._device)
        arrived = self._channels[name].receive(into, size)(timeout_s)
        whole = bool((arrived.data == 7).all())
        arrived.taken()
        return {"whole": whole}

    def _ping(self) -> dict[str, Any]:
        return {}

    def _free_bytes(self) -> int:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return int(torch.cuda.mem_get_info(self._device)[0])
        return -resident_bytes()


def main(kind: str, port: str) -> None:
    """Answer commands until `stop`, or the end of stdin."""
    peer = ChannelPeer(torch.device(kind), int(port))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "stop":
            break
        print(json.dumps(peer.answer(command)), flush=True)
    peer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
