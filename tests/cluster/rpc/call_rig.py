"""A replica whose calls give tokens, and a router that keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cluster.rpc.client_stream import CallStreams
from engine.errors import TandemError
from engine.types.sampling_params import SamplingParams
from protos.calls_pb2 import CallEvent, Command
from protos.shared_prompt import SharedPrompt
from tandem_client.protos.inference_pb2 import Tokens
from tests.cluster.rpc.ports import CallPort
from tests.protos.wire.rig import connector

PROMPT = SharedPrompt((1, 2), SamplingParams(max_tokens=4, seed=1))
KEPT = Command(call=1, prompt=PROMPT.encoded)


class Taker:
    """A receiver that keeps everything."""

    def __init__(self):
        self.events: list[CallEvent] = []
        self.error: TandemError | None = None

    def take(self, event):
        self.events.append(event)

    def lost(self, error):
        self.error = error

    @property
    def ended(self):
        return bool(self.events) and self.events[-1].HasField("ended")

    @property
    def ids(self):
        return [one for event in self.events for one in event.tokens.ids]


class Steps:
    """A pool's servicer: `endless` emits until cancelled, otherwise ten tokens, or an error."""

    def __init__(self):
        self.begun: list[str] = []
        self.freed: list[str] = []
        self.error: Exception | None = None
        self.freeing = asyncio.Event()

    async def serve(self, request, prompt, queue):
        self.begun.append(request.transfer)
        try:
            if self.error is not None:
                raise self.error
            count = 0
            while request.transfer.startswith("endless") or count < 10:
                queue.put(CallEvent(tokens=Tokens(index=count, ids=[count])))
                count += 1
                await asyncio.sleep(0.001)
        finally:
            if request.transfer == "endless-slow-to-free":
                await self.freeing.wait()
            self.freed.append(request.transfer)


@asynccontextmanager
async def rig() -> AsyncIterator[tuple[Steps, CallStreams, str, CallPort]]:
    steps = Steps()
    server = CallPort({"decode": steps.serve})
    address = await server.start()
    streams = CallStreams(connector())
    try:
        yield steps, streams, address, server
    finally:
        await streams.close()
        await server.stop()
