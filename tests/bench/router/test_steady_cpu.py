"""The router's CPU at a steady rate, by streams that got tokens."""

from __future__ import annotations

import asyncio

import pytest

from bench.router.fake_replicas import PlaceText, SteadyDecode
from bench.router.steady_cpu import CpuWindow
from bench.router.stream_load import GrpcStreams, Taken
from decode_pool.job import DecodeJob
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from tandem_client.protos import inference_pb2

TOKEN = inference_pb2.GenerateEvent(tokens=inference_pb2.Tokens(ids=[7])).SerializeToString()
HEARTBEAT = inference_pb2.GenerateEvent(heartbeat=inference_pb2.Heartbeat()).SerializeToString()


async def test_a_stream_that_only_stays_open_is_no_measure():
    client, window = GrpcStreams("127.0.0.1:1"), CpuWindow(0.001, 2.0, [1, 0], [3, 1])
    fair = [Taken([TOKEN] * 3), Taken([TOKEN])]
    assert window.spent(client, fair) == pytest.approx((1e3 / 3, 0.05))
    for silent in ([Taken([TOKEN] * 3), Taken([HEARTBEAT])], [Taken([HEARTBEAT] * 3), Taken()]):
        with pytest.raises(RuntimeError, match="got no token"):
            window.spent(client, silent)
    await client.close()


async def test_a_stream_that_failed_over_gets_tokens_from_a_fake_replica():
    decode = SteadyDecode()
    sampling = SamplingParams(seed=0, max_tokens=8)
    sequence = Sequence("a", [1, 1, 0, 1], 2, sampling)
    job = DecodeJob(sequence, PlaceText(sequence), local=True)
    decode.register(job)
    came = asyncio.Event()
    job.listen(lambda due_s: came.set())
    await decode.admit(job)
    await asyncio.wait_for(came.wait(), 10)
    emission = job.collect()
    assert emission.index == 2 and emission.text.startswith(" 2")
    decode.release(job)
