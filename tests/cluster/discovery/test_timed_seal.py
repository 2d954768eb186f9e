"""Seals of stored values: bound to what they seal, and to a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.discovery.timed_seal import MOST_AGE_S, TimedSeal
from tests.cluster.discovery.members import OTHER_SECRET, SECRET

NOW_S = 1_000_000.0


def sealer(now_s: float = NOW_S, secret=SECRET) -> TimedSeal:
    return TimedSeal(secret, lambda: now_s)


@given(st.lists(st.text(), max_size=3), st.lists(st.text(), max_size=3))
def test_a_seal_fits_what_it_seals_alone(texts, others):
    seal = sealer().of("subject", *texts)
    assert sealer().fits(seal, "subject", *texts)
    assert sealer().fits(seal, "subject", *others) == (texts == others)
    assert not sealer().fits(seal, "other subject", *texts)
    assert not sealer(secret=OTHER_SECRET).fits(seal, "subject", *texts)


@pytest.mark.parametrize(
    ("age_s", "fits"),
    [
        (0, True),
        (MOST_AGE_S, True),
        (-MOST_AGE_S, True),
        (MOST_AGE_S + 1, False),
        (-MOST_AGE_S - 1, False),
    ],
)
def test_a_seal_holds_for_a_time(age_s, fits):
    assert sealer(NOW_S + age_s).fits(sealer().of("subject"), "subject") == fits


def test_the_time_of_a_seal_cannot_be_changed():
    seal = sealer().of("subject", "a")
    later = seal.replace("1000000.", "1009999.")
    assert later != seal and not sealer(1_009_999).fits(later, "subject", "a")


@given(st.text())
def test_any_other_text_is_no_seal(text):
    assert not sealer().fits(text, "subject")


@pytest.mark.parametrize("seal", ["", ".", "9" * 5000 + ".00", "1.é", "\ud800.00", "nan.", "1.zz"])
def test_a_malformed_seal_is_no_seal(seal):
    assert not sealer().fits(seal, "subject")
