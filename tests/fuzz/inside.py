"""The port of a replica: strangers with any bytes, and members with fuzzed messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import get_args

from google.protobuf.message import Message

from engine.errors import TandemError
from protos import calls_pb2, kv_transfer_pb2, replica_pb2, report_pb2
from protos.wire.client import Connector
from protos.wire.handshake import Purpose, hello, new_nonce
from protos.wire.secret import ClusterSecret
from protos.wire.streams import FrameStream
from tests.fuzz.values import fill, mutated

_MOST_BYTES = 1 << 20
# A member that sent all of its messages waits so long for answers.
_ANSWERS_S = 0.5
_MESSAGES: dict[Purpose, Callable[[], Message]] = {
    "calls": calls_pb2.RouterMessage,
    "reports": report_pb2.ReportFrame,
    "control": replica_pb2.ControlRequest,
    "link": kv_transfer_pb2.ReceiverMessage,
}


class StrangerFuzzer:
    """A peer without the secret."""

    name = "stranger"

    def __init__(self, addresses: list[str]):
        self._addresses = addresses

    async def send(self, rng: random.Random) -> str:
        """One connection; a server that says more than its own half of the proof is wrong."""
        host, _, port = rng.choice(self._addresses).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            data = hello(rng.choice(get_args(Purpose)), new_nonce())
            data += rng.randbytes(rng.choice([0, 32, 32, 500]))
            writer.write(mutated(rng, data) if rng.random() < 0.5 else data)
            writer.write_eof()
            said = await reader.read(1 << 16)
            return "closed" if len(said) <= 64 else f"bad: it said {said[:200]!r}"
        except ConnectionError:
            return "closed"
        finally:
            writer.transport.abort()


class MemberFuzzer:
    """A peer that has the secret, and sends what no member sends."""

    name = "member"

    def __init__(self, addresses: list[str], secret_file: str):
        self._addresses = addresses
        self._connector = Connector(ClusterSecret.read(secret_file))

    async def send(self, rng: random.Random) -> str:
        """A few messages on one connection."""
        purpose: Purpose = rng.choice(list(_MESSAGES))
        stream = FrameStream(_MOST_BYTES)
        try:
            await self._connector.connect(rng.choice(self._addresses), purpose, stream.wire)
            for _ in range(rng.randint(1, 3)):
                await stream.write(self._message(rng, purpose))
            with suppress(TimeoutError):
                async with asyncio.timeout(_ANSWERS_S):
                    while True:
                        said = await stream.read()
                        if b"Traceback" in said:
                            return f"bad:{said[:300]!r}"
        except TandemError as error:
            return f"ended {type(error).__name__}"
        finally:
            stream.close()
        return "served"

    def _message(self, rng: random.Random, purpose: Purpose) -> bytes:
        message = _MESSAGES[purpose]()
        fill(rng, message)
        # A role that is taken would leave a pool without a replica.
        if isinstance(message, replica_pb2.ControlRequest) and message.HasField("take_role"):
            message.take_role.role = "nothing"
        data = message.SerializeToString() or b"\x00"
        return mutated(rng, data) or b"\x00" if rng.random() < 0.3 else data
