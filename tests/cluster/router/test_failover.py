"""A choice that goes on on other replicas, with a real admission queue and scripted streams."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from cluster.admission.admission_queue import AdmissionQueue
from cluster.admission.assignment import Assignment
from cluster.api import GenerateRequest, TokenPrompt
from cluster.placement.placement import Placement
from cluster.replica_record import ReplicaLoad, ReplicaRecord
from cluster.router import failover
from cluster.router.failover import Failover
from cluster.router.phases import placement_request
from cluster.router.resume_state import PreparedRequest, ResumeState
from cluster.router.rows.stage_times import StageTimes
from engine.errors import Internal, Overloaded, ReplicaLost, TransferFailed
from engine.types.sampling_params import SamplingParams
from engine.types.urgency import Urgency
from protos.decode_pb2 import Retired
from protos.shared_prompt import SharedPrompt, sequence_from_proto
from tests.cluster.router.test_choice_stream import FakeStream
from tests.eventually import eventually
from tests.metrics_page import recorded

LOAD = ReplicaLoad(blocks_total=1000, block_size=16)


class Cluster:
    """Two replicas of each pool or more, the streams to them, and the healthy ones."""

    def __init__(self):
        self.gone = set()
        self.slower = set()
        self.replicas = 2
        self.begun = []

    def healthy(self, pool):
        names = [f"{pool}-{n}" for n in range(self.replicas)]
        busy = replace(LOAD, streams=1)
        loads = [busy if one in self.slower else LOAD for one in names]
        records = [
            ReplicaRecord(one, pool, one, 1, load=load)
            for one, load in zip(names, loads, strict=True)
        ]
        return [one for one in records if one.id not in self.gone]

    def latest(self, record):
        return record

    def stale(self):
        return set()

    def asleep(self, pools):
        return ()

    def suspect(self, record):
        self.gone.add(record.id)

    def to(self, address):
        return Opening(self, address)


class Opening:
    """A stream that notes the call that begins on it."""

    def __init__(self, cluster, address):
        self.cluster, self.address = cluster, address

    def begin(self, request, prompt, receiver):
        stream = FakeStream()
        stream.address, stream.request, stream.prompt = self.address, request, prompt
        self.cluster.begun.append(stream)
        return stream.begin(request, prompt, receiver)


class Rig:
    """A choice under way."""

    def __init__(self, timeout_s=5.0):
        self.cluster, self.placement, self.emitted = Cluster(), Placement(), []
        self.admission = AdmissionQueue(self.cluster, self.placement, max_waiting=2)
        self.failover = Failover(
            self.admission.assigner.reassigner, self.cluster, self.cluster.suspect, timeout_s
        )
        sampling = SamplingParams(max_tokens=4, seed=1)
        prepared = PreparedRequest("r", SharedPrompt((1, 2), sampling), 1, 9.0)
        self.state = ResumeState(prepared, 0, StageTimes(0.0))
        self.assignment = None

    async def start(self):
        ask = placement_request(
            self.state.prepared, time.monotonic(), "default", GenerateRequest(TokenPrompt((1, 2)))
        )
        (self.assignment,) = await self.admission.enter(ask)
        running = self.failover.run(
            self.state, self.assignment, self.emitted.append, lambda first: None
        )
        self.task = asyncio.create_task(running)
        return await self.calls(2)

    async def calls(self, count):
        """So many calls were begun by now; the last two or the last one."""
        await eventually(lambda: len(self.cluster.begun) >= count)
        return self.cluster.begun[-min(2, count) :]

    @property
    def requests(self):
        """How many choices are counted on each decode replica."""
        return {
            one.id: self.placement.load_tracker.requests(one)
            for one in self.cluster.healthy("decode")
        }

    @property
    def ids(self):
        return [one for event in self.emitted for one in event.ids]


@pytest.fixture
async def rig():
    return Rig()


async def test_both_replicas_get_its_urgency_with_each_assignment(rig, monkeypatch):
    urgencies = iter([Urgency.URGENT, Urgency.PRESSED])
    monkeypatch.setattr(Assignment, "urgency", property(lambda assignment: next(urgencies)))
    first = await rig.start()
    first[0].receiver.lost(ReplicaLost("gone"))
    second = await rig.calls(4)
    for calls, urgency in ((first, Urgency.URGENT), (second, Urgency.PRESSED)):
        sequences = [sequence_from_proto(call.request, call.prompt) for call in calls]
        assert [one.urgency for one in sequences] == [urgency, urgency]
    rig.task.cancel()
    await asyncio.gather(rig.task, return_exceptions=True)


async def test_before_its_first_token_a_choice_begins_anew_on_another_pair(rig):
    prefill, decode = await rig.start()
    prefill.receiver.lost(ReplicaLost("gone"))
    again, other = await rig.calls(4)
    assert again.address != prefill.address and decode.cancelled
    assert again.request.transfer == other.request.transfer != prefill.request.transfer
    again.first(10)
    other.tokens(1, 11, 12, 13, last=True)
    other.say(retired=Retired())
    summary = await rig.task
    assert rig.ids == [10, 11, 12, 13]
    assert summary.prefill_replica == again.address


@pytest.mark.parametrize("error", [ReplicaLost("gone"), TransferFailed("silent for 1 s")])
async def test_later_one_decode_replica_goes_on_behind_what_was_sent(rig, error):
    prefill, decode = await rig.start()
    prefill.first(10)
    decode.tokens(1, 11)
    decode.receiver.lost(error)
    prefill.end()
    _, rest = await rig.calls(3)
    assert list(rest.request.output_ids) == [10, 11] and rest.request.local_prefill
    assert isinstance(error, TransferFailed) or rest.address != decode.address
    assert sum(rig.requests.values()) == 1
    decode.tokens(2, 99)  # too late
    rest.tokens(2, 12, 13, last=True)
    rest.say(retired=Retired())
    await rig.task
    assert rig.ids == [10, 11, 12, 13]
    rig.admission.assigner.release(rig.assignment, 4)
    assert not any(rig.requests.values())


async def test_a_full_replica_does_not_end_a_choice_that_has_begun(rig, monkeypatch):
    monkeypatch.setattr(failover, "POLL_S", 0.01)
    prefill, decode = await rig.start()
    prefill.first(10)
    decode.receiver.lost(ReplicaLost("gone"))
    _, full = await rig.calls(3)
    full.end(Overloaded("256 requests wait already", retry_after_s=0.01))
    _, rest = await rig.calls(4)
    rest.tokens(1, 11, 12, 13, last=True)
    rest.say(retired=Retired())
    await rig.task
    assert rig.ids == [10, 11, 12, 13]


async def test_a_choice_that_a_full_replica_refused_goes_to_another_at_once(rig):
    """Although the replica that refused it would be the best one again."""
    rig.cluster.replicas = 3
    prefill, decode = await rig.start()
    prefill.first(10)
    decode.receiver.lost(ReplicaLost("gone"))
    _, full = await rig.calls(3)
    rig.cluster.slower = {"decode-0", "decode-1", "decode-2"} - {full.address}
    full.end(Overloaded("256 requests wait already", retry_after_s=60.0))
    _, rest = await rig.calls(4)
    assert len({decode.address, full.address, rest.address}) == 3
    rest.tokens(1, 11, 12, 13, last=True)
    rest.say(retired=Retired())
    await rig.task


async def test_a_choice_that_all_replicas_refused_asks_again_soon(rig):
    """Whatever the refusals say: a retry time is for clients, and the stream stands still."""
    prefill, decode = await rig.start()
    prefill.first(10)
    decode.receiver.lost(ReplicaLost("gone"))
    began_s = time.monotonic()
    for count in (3, 4, 5):
        _, full = await rig.calls(count)
        full.end(Overloaded("256 requests wait already", retry_after_s=60.0))
    _, rest = await rig.calls(6)
    assert time.monotonic() - began_s > 0.1 + 0.2 + 0.4
    rest.tokens(1, 11, 12, 13, last=True)
    rest.say(retired=Retired())
    await rig.task


async def test_a_stream_that_waits_to_be_computed_goes_on_to_a_fresh_replica(rig):
    """It is no loss; and a stream that runs stays."""
    prefill, decode = await rig.start()
    prefill.first(10)
    decode.receiver.lost(ReplicaLost("gone"))
    _, slow = await rig.calls(3)
    rig.failover.hasten()
    assert len(rig.cluster.begun) == 3
    rig.cluster.gone.clear()
    rig.cluster.gone.add(decode.address)
    rig.cluster.replicas = 3
    rig.placement.costs.prefill(slow.address).learn(1000, 0, 60.0, 0.0)
    rig.placement.costs.prefill(slow.address).learn(1000, 0, 60.0, 60.0)
    with recorded() as page:
        rig.failover.hasten()
        _, fresh = await rig.calls(4)
        assert (fresh.address, list(fresh.request.output_ids)) == ("decode-2", [10])
        assert slow.cancelled and sum(rig.requests.values()) == 1
        slow.tokens(1, 99)  # too late
        fresh.tokens(1, 11)
        rig.failover.hasten()
        fresh.tokens(2, 12, 13, last=True)
        fresh.say(retired=Retired())
        await rig.task
    assert rig.ids == [10, 11, 12, 13] and len(rig.cluster.begun) == 4
    assert not page.value("tandem_failovers_total")


async def test_a_failover_counts_once_and_by_what_was_lost(rig, monkeypatch):
    monkeypatch.setattr(failover, "POLL_S", 0.01)
    with recorded() as page:
        prefill, decode = await rig.start()
        prefill.first(10)
        decode.receiver.lost(ReplicaLost("gone"))
        for count in (3, 4):
            _, full = await rig.calls(count)
            full.end(Overloaded("256 requests wait already", retry_after_s=0.01))
        _, rest = await rig.calls(5)
        rest.tokens(1, 11, 12, 13, last=True)
        rest.say(retired=Retired())
        await rig.task
    assert page.value("tandem_failovers_total", reason="ReplicaLost") == 1
    assert page.value("tandem_failovers_total") == 1


async def test_a_full_replica_ends_a_choice_that_has_not_begun(rig):
    prefill, _ = await rig.start()
    prefill.end(Overloaded("no capacity", retry_after_s=1.0))
    with pytest.raises(Overloaded):
        await rig.task


async def test_a_fault_is_no_loss(rig):
    prefill, _ = await rig.start()
    prefill.end(Internal("NaN"))
    with pytest.raises(Internal):
        await rig.task
    assert len(rig.cluster.begun) == 2


async def test_losses_have_a_bound(rig):
    prefill, decode = await rig.start()
    prefill.first(10)
    last = decode
    for count in range(3, 3 + failover.MOST_LOSSES):
        last.receiver.lost(ReplicaLost("gone"))
        rig.cluster.gone.clear()
        _, last = await rig.calls(count)
    last.receiver.lost(ReplicaLost("gone"))
    with pytest.raises(ReplicaLost):
        await rig.task
    assert not any(rig.requests.values())


async def test_a_wait_for_other_replicas_has_an_end_and_can_be_cancelled():
    for cancelled in (False, True):
        rig = Rig(timeout_s=60.0 if cancelled else 0.2)
        prefill, decode = await rig.start()
        prefill.first(10)
        rig.cluster.gone.update({"decode-0", "decode-1"})
        began_s = time.monotonic()
        decode.receiver.lost(ReplicaLost("gone"))
        if cancelled:
            ended, _ = await asyncio.wait({rig.task}, timeout=0.05)
            assert not ended
            rig.task.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else ReplicaLost):
            await rig.task
        assert cancelled or time.monotonic() - began_s > 0.1
