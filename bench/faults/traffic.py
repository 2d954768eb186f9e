"""Traffic of several tenants: chats over HTTP, completions over gRPC, each at its own pace."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from bench.faults.cluster_faults import CHAT, Flow
from bench.load.client import Target, send_request
from bench.load.http_recording import BadAnswer
from tandem_client import Client
from tandem_client.errors import TandemError

# Bound: the time of one request.
_DEADLINE_S = 120.0
_WORDS = ("the", "one", "many", "of", "some", "red", "old", "small", "river", "house", "paper")
# Token ids of the demo model that are no special tokens.
_IDS = range(300, 1500)


@dataclass
class Traffic:
    """Sends flows to one router. `ended` counts the requests by tenant and outcome."""

    grpc: str
    http_port: int
    keys: Mapping[str, str]
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)

    @asynccontextmanager
    async def of(self, flows: Sequence[Flow]) -> AsyncIterator[None]:
        """Send these flows while the block runs; what still runs then is cancelled."""
        async with AsyncExitStack() as stack:
            clients = {
                name: await stack.enter_async_context(Client(self.grpc, api_key=key))
                for name, key in self.keys.items()
            }
            tasks = [asyncio.create_task(self._send(flow, clients[flow.tenant])) for flow in flows]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, flow: Flow, client: Client) -> None:
        draw, running = random.Random(repr(flow)), set[asyncio.Task[None]]()
        try:
            while True:
                await asyncio.sleep(draw.expovariate(flow.rate))
                if len(running) >= flow.at_once:
                    self.ended[flow.tenant, "left out"] += 1
                    continue
                task = asyncio.create_task(self._ask(flow, client, draw))
                running.add(task)
                task.add_done_callback(running.discard)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _ask(self, flow: Flow, client: Client, draw: random.Random) -> None:
        size = round(flow.prompt * draw.uniform(0.8, 1.2))
        outcome = "failed"
        with suppress(TandemError, BadAnswer, OSError, TimeoutError):
            if flow.endpoint == CHAT:
                outcome = await self._chat(flow, " ".join(draw.choices(_WORDS, k=size)))
            else:
                outcome = await self._complete(flow, client, draw.choices(_IDS, k=size))
        self.ended[flow.tenant, outcome] += 1

    async def _chat(self, flow: Flow, text: str) -> str:
        headers = {"Authorization": f"Bearer {self.keys[flow.tenant]}"}
        target = Target("127.0.0.1", self.http_port, headers=headers)
        body = {
            "messages": [{"role": "user", "content": text}],
            "endpoint": flow.endpoint,
            "max_tokens": flow.answer,
            "ignore_eos": True,
            "stream": True,
        }
        request = target.post(body, "/v1/chat/completions")
        answer = await send_request(target, request, _DEADLINE_S)
        status = answer.status()
        return "ok" if status == 200 else str(status)

    async def _complete(self, flow: Flow, client: Client, ids: list[int]) -> str:
        async for _ in client.generate(
            ids,
            endpoint=flow.endpoint,
            max_tokens=flow.answer,
            ignore_eos=True,
            timeout_s=_DEADLINE_S,
        ):
            pass
        return "ok"
