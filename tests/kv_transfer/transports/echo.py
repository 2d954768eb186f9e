"""The other process of `test_lanes`: sends back what it gets, each byte one more."""

from __future__ import annotations

import json
import sys

import torch

from kv_transfer.transports.selection import open_lane
from kv_transfer.transports.transport import RECEIVER_RANK
from tests.kv_transfer.transports.test_channels import make_spec


def main(transport: str, port: int, prefix: str) -> None:
    lane = open_lane(make_spec(transport, RECEIVER_RANK, port, prefix, timeout_s=60.0))
    for size in (1, 4097, 8 << 20):
        buffer = torch.zeros(size, dtype=torch.uint8, device=lane.staging_device)
        arrived = lane.receive(buffer, size)(10.0)
        answer = arrived.data + 1
        arrived.taken()
        lane.send(answer)(10.0)
    lane.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
