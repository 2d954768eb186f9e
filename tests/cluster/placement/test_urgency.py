"""Routers and replicas agree on the urgency of prompts that wait together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.placement.cost_model import Pace
from cluster.placement.replica_load import PlacedPrompt, PrefillBacklog
from engine.scheduling.prompt_order import PromptOrder
from engine.scheduling.prompt_queue import PromptQueue
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from engine.types.urgency import Urgency

URGENCIES = {
    Pace.BESIDE: Urgency.PROMPTS,
    Pace.PRESSED: Urgency.PRESSED,
    Pace.URGENT: Urgency.URGENT,
}
comes = st.tuples(st.sampled_from(list(URGENCIES)), st.booleans())


@given(st.lists(comes | st.none(), max_size=30))
def test_a_router_counts_the_urgency_of_those_that_wait_as_their_replica_does(events):
    """`None`: the oldest leaves; else one comes at that pace, of the batch lane or not."""
    queue, turns, there = PrefillBacklog(), PromptQueue(PromptOrder(512)), []
    for place, event in enumerate(events):
        if event is not None:
            pace, batch = event
            lane = "batch" if batch else "interactive"
            one = Sequence(
                str(place), [1] * 10, 10, SamplingParams(), urgency=URGENCIES[pace], lane=lane
            )
            turns.add(one, float(place))
            there.append((queue.add(PlacedPrompt(10, batch=batch, pace=pace), float(place)), one))
        elif there:
            key, one = there.pop(0)
            queue.drop(key)
            turns.drop(one.owner)
    counted = [URGENCIES[left.pace] for left in queue.left() if not left.prompt.batch]
    assert counted == [one.urgency for _, one in there if one.lane != "batch"]
