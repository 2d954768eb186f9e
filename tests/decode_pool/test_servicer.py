"""A call of the decode service over a paused engine: the times that it reports."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from decode_pool.servicer import DecodeServicer
from engine.text.completion import ChoiceText
from engine.types.sampling_params import SamplingParams
from protos.decode_pb2 import DecodeRequest
from protos.shared_prompt import SharedPrompt
from tests.decode_pool.paper_loop import running
from tests.engine.text.test_completion import TOKENIZERS
from tests.eventually import eventually
from tests.paused_engine import PausedEngine


class Sink:
    """Takes each event as soon as it is due."""

    def __init__(self):
        self.events = []

    def put(self, event):
        self.events.append(event)

    def ready(self, collect, due_s=0.0):
        self.events.append(collect())


def new_completion(sequence):
    tokenizer = TOKENIZERS["byte_level"]
    return ChoiceText(tokenizer, [1], sequence.sampling, tokenizer.eos_ids, 1000)


async def unguided(sequence):
    assert sequence.sampling.grammar is None


async def test_the_time_of_a_prompt_is_no_time_of_its_decode(monkeypatch):
    sink = Sink()
    prompt = SharedPrompt((1,) * 40, SamplingParams(max_tokens=3, ignore_eos=True))
    request = DecodeRequest(transfer="a", local_prefill=True)
    async with running(monkeypatch, 2.0, engine=PausedEngine()) as (subject, engine):
        servicer = DecodeServicer(subject, None, new_completion, 20.0, unguided)
        began_s = time.monotonic()
        call = asyncio.create_task(servicer.serve(request, prompt, sink))
        await engine.pause_in_slice(0)
        await asyncio.sleep(0.5)
        engine.go_on()
        await asyncio.wait_for(call, 20)
        took_s = time.monotonic() - began_s
    first, retired = sink.events[0].first_token, sink.events[-1].retired
    assert first.prefill_s >= 0.5
    assert 0 < retired.decode_s <= took_s - first.prefill_s


async def test_a_cancelled_call_tells_of_its_steps(monkeypatch):
    sink = Sink()
    prompt = SharedPrompt((1,) * 40, SamplingParams(max_tokens=3000, ignore_eos=True))
    request = DecodeRequest(transfer="a", local_prefill=True, flush_tokens=1)
    async with running(monkeypatch, 2.0) as (subject, _):
        servicer = DecodeServicer(subject, None, new_completion, 20.0, unguided)
        call = asyncio.create_task(servicer.serve(request, prompt, sink))
        await eventually(lambda: len(sink.events) > 5)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
    retired = sink.events[-1].retired
    assert retired.steps >= 4
    assert 0 < retired.share_s <= retired.stepping_s
