"""The other process of `test_channels`: sends back what it gets, each byte one more."""

from __future__ import annotations

import json
import sys

import torch

from kv_transfer.transports.selection import open_channel
from kv_transfer.transports.transport import RECEIVER_RANK
from tests.kv_transfer.transports.channel_rig import make_spec


def main(transport: str, port: int, prefix: str) -> None:
    channel = open_channel(make_spec(transport, RECEIVER_RANK, port, prefix, timeout_s=60.0))
    for size in (1, 4097, 8 << 20):
        buffer = torch.zeros(size, dtype=torch.uint8, device=channel.staging_device)
        arrived = channel.receive(buffer, size)(10.0)
        answer = arrived.data + 1
        arrived.taken()
        channel.send(answer)(10.0)
    channel.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
