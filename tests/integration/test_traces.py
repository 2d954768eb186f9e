"""Traces of real requests: each door takes a client's trace, and gives it to both pools."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace

import grpc
import httpx
import pytest
from websockets.asyncio.client import connect

from cluster.config.request_log import TracingConfig
from cluster.telemetry.requests.stages import stages_of
from tandem_client.protos import inference_pb2, inference_pb2_grpc
from tests.eventually import eventually
from tests.integration.local import LocalCluster, cluster
from tests.otlp_collector import collector

ASKED = {"prompt": [3] * 300, "max_tokens": 5, "ignore_eos": True}


async def over_grpc(local: LocalCluster, traceparent: str) -> None:
    ids = inference_pb2.TokenIds(ids=ASKED["prompt"])
    sampling = inference_pb2.Sampling(max_tokens=5, ignore_eos=True)
    request = inference_pb2.GenerateRequest(token_ids=ids, sampling=sampling)
    async with grpc.aio.insecure_channel(local.router.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        assert [
            one async for one in stub.Generate(request, metadata=(("traceparent", traceparent),))
        ]


async def over_http(local: LocalCluster, traceparent: str) -> None:
    url = f"http://{local.router.http_address}/v1/completions"
    body = ASKED | {"model": local.router.router.model.name}
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.post(url, json=body, headers={"traceparent": traceparent})
    assert answer.status_code == 200


async def over_websocket(local: LocalCluster, traceparent: str) -> None:
    url = f"ws://{local.router.http_address}/v1/stream"
    async with connect(url, additional_headers={"traceparent": traceparent}) as socket:
        await socket.send(json.dumps(ASKED | {"type": "completion", "id": "mine"}))
        while json.loads(await socket.recv())["type"] != "end":
            pass


@pytest.mark.parametrize("ask", [over_grpc, over_http, over_websocket])
async def test_a_client_s_trace_goes_on_here_and_in_both_pools(config, caplog, ask):
    caplog.set_level(logging.INFO)
    with collector() as taken:
        traced = replace(config, tracing=TracingConfig(otlp=taken.url, share=0.0))
        async with cluster(traced) as local:
            await local.client.complete(ASKED["prompt"], max_tokens=5)
            async with asyncio.timeout(30):
                await ask(local, f"00-{7:032x}-00f067aa0ba902b7-01")
            await eventually(lambda: len(local.router.requests.store) == 2)
            *_, row = local.router.requests.store
    assert len(taken.spans()) == len(taken.spans(7)), "an untraced request was traced"
    *stages, whole = taken.spans(7)
    assert [one.name for one in stages] == [one.stage for one in stages_of(row.choices[0])]
    assert {one.parent_span_id for one in stages} == {whole.span_id}
    took_s = (whole.end_time_unix_nano - whole.start_time_unix_nano) / 1e9
    assert took_s == pytest.approx(row.total_s, abs=1e-3)
    named = f"00-{7:032x}-{whole.span_id.hex()}-01"
    said = [one.message for one in caplog.records if getattr(one, "traceparent", "") == named]
    assert {"first token sampled", "decode started"} <= set(said)


async def test_without_a_collector_the_pools_get_the_client_s_own(config, caplog):
    caplog.set_level(logging.INFO)
    parent = f"00-{7:032x}-00f067aa0ba902b7-01"
    async with cluster(config) as local:
        await over_http(local, parent)
    said = [one.message for one in caplog.records if getattr(one, "traceparent", "") == parent]
    assert {"request accepted", "first token sampled", "decode started"} <= set(said)
