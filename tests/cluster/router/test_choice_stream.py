"""One choice on a pair of replicas, event by event."""

from __future__ import annotations

import asyncio

import pytest

from cluster.placement.types import Pair
from cluster.replica_record import ReplicaRecord
from cluster.router.choice_stream import ChoiceHooks, ChoiceStream
from cluster.router.resume_state import PreparedRequest, ResumeState
from cluster.router.rows.stage_times import StageTimes
from cluster.telemetry.router_metrics import TIME_TO_CANCEL
from engine import telemetry
from engine.errors import Internal, Overloaded, ReplicaLost, TransferFailed
from engine.types.sampling_params import SamplingParams
from protos.calls_pb2 import CallEvent, Ended
from protos.decode_pb2 import Retired
from protos.prefill_pb2 import FirstToken, HandedOver
from protos.shared_prompt import SharedPrompt
from protos.status import failure_to_proto
from tandem_client.protos.inference_pb2 import FINISH_REASON_LENGTH, Tokens


class FakeStream:
    """A stream whose replica does as the test says."""

    def __init__(self):
        self.receiver = None
        self.cancelled = False

    def begin(self, request, prompt, receiver):
        self.receiver = receiver
        return self

    def cancel(self):
        self.cancelled = True

    def first(self, *ids, last=False):
        self.receiver.take(CallEvent(first_token=FirstToken(tokens=wire(0, ids, last))))

    def tokens(self, index, *ids, last=False):
        self.receiver.take(CallEvent(tokens=wire(index, ids, last)))

    def say(self, **event):
        self.receiver.take(CallEvent(**event))

    def end(self, error=None):
        failure = None if error is None else failure_to_proto(error)
        self.receiver.take(CallEvent(ended=Ended(failure=failure)))


def wire(index, ids, last):
    return Tokens(index=index, ids=ids, finish_reason=FINISH_REASON_LENGTH if last else 0)


class Rig:
    """A run with its two streams, and what came out of it."""

    def __init__(self, max_tokens=4, output=()):
        self.prefill, self.decode = FakeStream(), FakeStream()
        self.emitted, self.suspects, self.prefilled = [], [], 0
        sampling = SamplingParams(max_tokens=max_tokens, seed=1)
        records = [ReplicaRecord(f"{role}-0", role, "a:1", 1) for role in ("prefill", "decode")]
        hooks = ChoiceHooks(
            emit=self.emitted.append,
            lost=self.suspects.append,
            prefilled=self._note_prefilled,
            computed=lambda first: None,
        )
        prepared = PreparedRequest("r", SharedPrompt((1, 2), sampling), 1, 1.0)
        self.record = ResumeState(prepared, 0, StageTimes(0.0), list(output))
        pair = Pair(records[1], records[1]) if output else Pair(*records)
        self.run = ChoiceStream(self.record, pair, (self.prefill, self.decode), hooks)
        self.task = asyncio.create_task(self.run.run())

    def _note_prefilled(self):
        self.prefilled += 1

    @property
    def ids(self):
        return [one for event in self.emitted for one in event.ids]

    async def outcome(self):
        return await asyncio.wait_for(self.task, 5)


async def begun(**options):
    rig = Rig(**options)
    while rig.record.prepared.sampling.max_tokens != 1 and rig.decode.receiver is None:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    return rig


async def test_tokens_of_decode_wait_for_the_first_one():
    rig = await begun()
    rig.decode.tokens(1, 11, 12)
    assert not rig.emitted
    rig.prefill.first(10)
    assert rig.ids == [10, 11, 12]
    rig.decode.tokens(3, 13, last=True)
    rig.decode.say(retired=Retired(preemptions=2))
    assert (await rig.outcome()).preemptions == 2
    assert rig.record.output == [10, 11, 12, 13]


@pytest.mark.parametrize("index", [1, 3])
async def test_a_token_out_of_order_is_a_fault(index):
    rig = await begun()
    rig.prefill.first(10)
    rig.decode.tokens(1, 11)
    rig.decode.tokens(index, 12)
    with pytest.raises(Internal, match="was due"):
        await rig.outcome()
    assert rig.ids == [10, 11]
    assert rig.prefill.cancelled
    assert rig.decode.cancelled


async def test_a_first_token_that_ends_it_ends_the_decode_call_too():
    rig = await begun()
    rig.prefill.first(10, last=True)
    rig.decode.end(TransferFailed("withdrawn"))
    await rig.outcome()
    assert rig.ids == [10]


async def test_one_token_needs_no_decode_call():
    rig = await begun(max_tokens=1)
    rig.prefill.first(10, last=True)
    await rig.outcome()
    assert rig.decode.receiver is None


async def test_the_echo_of_a_failure_waits_for_the_failure():
    rig = await begun()
    rig.prefill.end(TransferFailed("the receiver gave up"))
    assert not rig.run._outcome.done()
    rig.decode.end(Overloaded("no capacity", retry_after_s=1.0))
    with pytest.raises(Overloaded, match="no capacity"):
        await rig.outcome()
    assert rig.prefilled


@pytest.mark.parametrize("second", [TransferFailed("echo"), None])
async def test_an_echo_alone_is_the_failure(second):
    rig = await begun()
    rig.prefill.end(TransferFailed("first"))
    rig.decode.end(second)
    with pytest.raises(TransferFailed, match="first"):
        await rig.outcome()


async def test_two_calls_that_end_without_a_finish_are_a_fault():
    rig = await begun()
    rig.prefill.first(10)
    rig.prefill.say(handed_over=HandedOver())
    rig.prefill.end()
    rig.decode.end()
    with pytest.raises(Internal, match="without a finish"):
        await rig.outcome()


async def test_a_lost_replica_is_suspected_and_named():
    rig = await begun()
    rig.prefill.first(10)
    rig.decode.receiver.lost(ReplicaLost("the stream ended"))
    with pytest.raises(ReplicaLost, match="decode replica decode-0 was lost"):
        await rig.outcome()
    assert [record.id for record in rig.suspects] == ["decode-0"]


async def test_a_failed_over_choice_goes_on_behind_the_sent_tokens():
    rig = await begun(output=(10, 11))
    assert rig.prefill.receiver is None
    rig.decode.tokens(2, 12)
    assert rig.prefilled == 1
    rig.decode.tokens(3, 13, last=True)
    rig.decode.say(retired=Retired())
    await rig.outcome()
    assert rig.ids == [12, 13]
    assert rig.record.output == [10, 11, 12, 13]


async def test_a_failure_after_the_last_token_is_none():
    rig = await begun()
    rig.prefill.first(10)
    rig.decode.tokens(1, 11, last=True)
    rig.prefill.receiver.lost(ReplicaLost("gone"))
    rig.decode.end()
    await rig.outcome()
    assert rig.ids == [10, 11]


class Observations:
    """A backend that keeps the times to cancel."""

    def __init__(self):
        self.seen = []

    def attach(self, metric):
        if metric is TIME_TO_CANCEL:
            return lambda value, labels: self.seen.append(value)
        return lambda value, labels: None


async def test_the_time_to_cancel_ends_when_both_replicas_are_free():
    backend = Observations()
    telemetry.install(backend)
    try:
        rig = await begun()
        rig.prefill.first(10)
        rig.task.cancel()
        await asyncio.gather(rig.task, return_exceptions=True)
        assert rig.prefill.cancelled
        assert rig.decode.cancelled
        rig.decode.tokens(1, 11)
        rig.prefill.end()
        assert not backend.seen
        rig.decode.end()
        assert len(backend.seen) == 1
        assert rig.ids == [10]
    finally:
        telemetry.uninstall(backend)


async def test_a_first_token_that_crosses_a_cancel_is_charged():
    rig = await begun()
    rig.task.cancel()
    await asyncio.gather(rig.task, return_exceptions=True)
    rig.prefill.say(first_token=FirstToken(tokens=wire(0, (10,), False), share_s=0.5))
    assert not rig.ids
    assert rig.record.times.left_prefill_share_s == 0.5
