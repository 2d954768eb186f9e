"""A batch beside interactive requests: it gets everything done, and gives way."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from cluster.batch.concurrency import BatchConcurrency
from cluster.batch.http_client import BatchServer
from cluster.batch.lines import read_input
from cluster.batch.output import BatchOutput
from cluster.batch.run import BatchRun, endpoint_for
from cluster.config.endpoints import EndpointConfig
from tests.eventually import eventually
from tests.integration.local import LocalCluster, cluster

LINES = 16
PROMPT = 600


def lines():
    for number in range(LINES):
        body = {"prompt": [number + 1] * PROMPT, "max_tokens": 3, "temperature": 0}
        if number % 4 == 0:
            body |= {"echo": True, "logprobs": 1, "max_tokens": 0}
        line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        yield json.dumps(line).encode() + b"\n"


class Order:
    """What a prefill replica is given and begins, in order, as (event, lane)."""

    def __init__(self, local: LocalCluster) -> None:
        self.events: list[tuple[str, str]] = []
        (replica,) = local.prefill
        submit, begin = replica.parts.prefill.scheduler.submit, replica.parts.model.engine.begin

        def submitted(sequence, now):
            self.events.append(("given", sequence.lane))
            submit(sequence, now)

        def began(spans, stored=None):
            self.events += [("begun", span.sequence.lane) for span in spans]
            return begin(spans, stored)

        replica.parts.prefill.scheduler.submit, replica.parts.model.engine.begin = submitted, began


async def run(local: LocalCluster, path) -> BatchRun:
    server = BatchServer.at(f"http://{local.router.http_address}", None)
    endpoint = endpoint_for((await server.get("/v1/models")).reply.body, None)
    with BatchOutput(path) as output:
        batch = BatchRun(server, output.add, BatchConcurrency(8), endpoint, before=len(output.done))
        await batch.run(read_input(lines(), output.done), lambda line: None)
    return batch


async def test_interactive_requests_are_computed_before_a_batch_that_waits(config, tmp_path):
    night = EndpointConfig(lane="batch", itl_budget_ms=60_000)
    config = replace(
        config,
        prefill=replace(config.prefill, chunk_tokens=64, local_prefill_tokens=0),
        kv=replace(config.kv, blocks=1200, prefix_cache=False),
        endpoints={
            **config.endpoints,
            "night": night,
        },
    )
    path = tmp_path / "out.jsonl"
    async with cluster(config) as local:
        order = Order(local)
        running = asyncio.create_task(run(local, path))
        chats = 0
        while not running.done() and chats < 5:
            await eventually(
                lambda: running.done() or local.prefill[0].load().prompt_tokens_due >= PROMPT, 60
            )
            if not running.done():
                await local.client.complete([chats] * 50, max_tokens=2, ignore_eos=True)
                chats += 1
        batch = await running
        assert chats >= 3
        assert batch.progress.succeeded == LINES
        await local.idle()
        again = await run(local, path)
        assert (again.progress.succeeded, again.progress.before) == (0, LINES)
    lanes = {lane for _, lane in order.events}
    assert lanes == {"interactive", "batch"}
    for index, event in enumerate(order.events):
        if event == ("given", "interactive"):
            begun = [lane for kind, lane in order.events[index:] if kind == "begun"]
            # It is begun next, although prompts of the batch wait for longer.
            assert begun[0] == "interactive"
    results = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert sorted(int(result["custom_id"]) for result in results) == list(range(LINES))
    for result in results:
        (choice,) = result["response"]["body"]["choices"]
        scored = int(result["custom_id"]) % 4 == 0
        assert (choice["logprobs"] is not None) == scored
