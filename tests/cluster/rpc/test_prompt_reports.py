"""A replica's reports of progress: correct, seldom, and only for requests with `progress`."""

from __future__ import annotations

import asyncio

import pytest

from cluster.rpc.send_queue import SendQueue
from engine.scheduling.prompt_order import PromptOrder
from engine.scheduling.prompt_queue import PromptQueue, QueuePosition
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from protos import prompt_reports
from protos.calls_pb2 import CallEvent
from protos.prompt_reports import PromptReports
from tandem_client.protos.inference_pb2 import Tokens


def sequence(owner="a", tokens=100, lane="interactive", budget_s=1000.0):
    found = Sequence(owner, list(range(tokens)), tokens, SamplingParams(max_tokens=9))
    found.lane, found.ttft_budget_s = lane, budget_s
    return found


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(prompt_reports, "EVERY_S", 0.005)


async def next_events(queue, within_s=30.0):
    async with asyncio.timeout(within_s):
        return [event.progress for event in await queue.next()]


async def test_progress_is_reported_from_the_queue_to_the_first_token():
    prompt, positions = sequence(), {"a": QueuePosition(3, 1.5)}
    reports, queue = PromptReports(lambda: positions), SendQueue()
    reports.begin(prompt, queue.queue(1))
    (first,) = await next_events(queue)
    assert (first.queued, first.position, first.wait_s) == (True, 3, 1.5)
    positions["a"] = QueuePosition(1, None)
    (second,) = await next_events(queue)
    assert (second.queued, second.position, second.HasField("wait_s")) == (True, 1, False)
    prompt.cached_tokens = prompt.computed = 32
    (third,) = await next_events(queue)
    assert (third.queued, third.computed) == (False, 32)
    prompt.tokens.append(5)
    with pytest.raises(TimeoutError):
        await next_events(queue, 0.05)


async def test_progress_is_not_repeated_and_stops_at_the_end():
    prompt = sequence()
    prompt.cached_tokens = 0
    reports, queue = PromptReports(dict), SendQueue()
    reports.begin(prompt, queue.queue(1))
    await next_events(queue)
    with pytest.raises(TimeoutError):
        await next_events(queue, 0.05)
    reports.end(prompt)
    reports.end(prompt)
    prompt.computed = 50
    with pytest.raises(TimeoutError):
        await next_events(queue, 0.05)
    assert reports._timer is None


async def test_positions_are_not_computed_without_waiting_prompts():
    asked = []
    prompt = sequence()
    prompt.cached_tokens = 0
    reports, queue = PromptReports(lambda: asked.append(1) or {}), SendQueue()
    reports.begin(prompt, queue.queue(1))
    await next_events(queue)
    assert not asked
    reports.end(prompt)


async def test_tokens_of_the_same_call_come_first_and_are_never_lost():
    prompt, made = sequence(), []
    prompt.cached_tokens = 0
    reports, queue = PromptReports(dict), SendQueue()
    sink = queue.queue(1)
    collect = reports.begin(prompt, sink, lambda: CallEvent(tokens=made.pop()) if made else None)
    await next_events(queue)
    prompt.computed = 100
    made.append(Tokens(ids=[1]))
    sink.ready(collect)
    (event,) = await queue.next()
    assert event.tokens.ids == [1]
    reports.end(prompt)


def turns(token_s=0.01):
    order = PromptOrder(512)
    if token_s is not None:
        order.learn(1024, 1024 * token_s)
    return PromptQueue(order)


def test_a_position_counts_earlier_prompts_of_the_lane_and_the_wait_all_tokens():
    subject = turns()
    for owner, tokens in (("long", 400), ("short", 100), ("mid", 200)):
        subject.add(sequence(owner, tokens), 0.0)
    positions = subject.positions(0.0)
    assert [positions[owner].position for owner in ("short", "mid", "long")] == [1, 2, 3]
    waits = [positions[owner].wait_s for owner in ("short", "mid", "long")]
    assert waits == pytest.approx([0.0, 1.0, 3.0])


def test_a_prompt_being_computed_has_no_position_but_counts_in_the_wait():
    subject = turns()
    running = sequence("running", 50)
    running.cached_tokens = 0
    subject.add(running, 0.0)
    subject.add(sequence("next", 100), 0.0)
    positions = subject.positions(0.0)
    assert positions.keys() == {"next"}
    assert positions["next"].position == 1
    assert positions["next"].wait_s == pytest.approx(0.5)


def test_other_lanes_take_their_share_of_the_wait_and_no_more_than_they_have():
    subject = turns()
    subject.add(sequence("chat", 600), 0.0)
    subject.add(sequence("batch", 100, "batch"), 0.0)
    # The chat's lane has twelve times the share, but no more than 600 tokens.
    assert subject.positions(0.0)["batch"].wait_s == pytest.approx(6.0)
    assert subject.positions(0.0)["chat"].wait_s == pytest.approx(0.5)


def test_no_wait_is_made_up_before_there_was_a_prompt():
    subject = turns(token_s=None)
    subject.add(sequence(), 0.0)
    assert subject.positions(0.0) == {"a": QueuePosition(1, None)}


def test_a_crowd_has_positions_too():
    subject = turns()
    for number in range(200):
        subject.add(sequence(str(number), 10), float(number))
    positions = subject.positions(200.0)
    assert sorted(place.position for place in positions.values()) == list(range(1, 201))


async def test_no_progress_is_reported_after_the_first_token():
    prompt = sequence()
    reports, queue = PromptReports(dict), SendQueue()
    reports.begin(prompt, queue.queue(1))
    prompt.tokens.append(3)
    with pytest.raises(TimeoutError):
        await next_events(queue, 0.05)
    assert reports._timer is None
