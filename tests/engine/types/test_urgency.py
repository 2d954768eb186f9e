"""The urgency of prompts that wait together: never lowered, and an urgent prompt presses on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.types.urgency import Urgency, raised

urgencies = st.sampled_from(Urgency)


@given(urgencies, urgencies, st.booleans())
def test_urgency_is_never_lowered_and_none_stays_none(urgency, other, behind):
    found = raised(urgency, other, behind=behind)
    assert found >= urgency
    assert raised(found, other, behind=behind) is found
    if urgency is Urgency.NONE:
        assert found is Urgency.NONE


@given(urgencies, urgencies)
def test_a_prompt_ahead_of_another_has_its_urgency_and_one_behind_is_not_made_urgent(one, other):
    if one is not Urgency.NONE:
        assert raised(one, other) >= other
        assert raised(one, other, behind=True) >= min(other, Urgency.PRESSED)
    if one is not Urgency.URGENT:
        assert raised(one, other, behind=True) is not Urgency.URGENT
