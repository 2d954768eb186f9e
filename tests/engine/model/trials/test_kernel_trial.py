"""A candidate replaces the reference where it is right in all cases, up to where it is faster."""

import logging

import pytest
import torch

from engine.model.trials.kernel_trial import KernelTrial, TrialCase

EXPECTED = torch.tensor([3.0, 4.0])
TRIAL = KernelTrial("a sum", "candidate", "reference", tolerance=0.01, runs=3)


def answers(*values):
    """A call that gives one answer after the other, and then the last one again."""
    left = list(values)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def case(name="a case", candidate=None, reference=lambda: EXPECTED):
    return TrialCase(name, candidate or answers(EXPECTED), reference)


def timer(*seconds):
    """A fake timer: the candidate's and the reference's seconds, case by case."""
    told = iter(seconds)
    return lambda call: next(told)


def never(call):
    raise AssertionError("a wrong candidate is not measured")


@pytest.mark.parametrize(
    ("seconds", "won", "told"),
    [
        ((0.5, 1, 0.5, 1), 2, "a sum: candidate up to large (small: 500000.0 of 1000000.0 us, l"),
        ((0.97, 1, 0.98, 1), 1, "a sum: candidate up to small (small: "),
        ((0.98, 1, 0.1, 1), 0, "a sum: reference (small: 980000.0 of 1000000.0 us)"),
        ((float("nan"), 1), 0, "a sum: reference (small: nan"),
    ],
)
def test_it_is_used_up_to_the_first_case_that_it_does_not_win_by_3_percent(
    seconds, won, told, caplog
):
    caplog.set_level(logging.INFO)
    assert TRIAL.cases_won([case("small"), case("large")], timer(*seconds)) == won
    assert told in caplog.text
    assert len(caplog.records) == 1


def test_a_single_case_is_won_or_not(caplog):
    caplog.set_level(logging.INFO)
    assert TRIAL.cases_won([case()], timer(0.1, 1)) == 1
    assert "a sum: candidate (a case: 100000.0 of 1000000.0 us)" in caplog.text


@pytest.mark.parametrize(
    ("answer", "tolerance", "right"),
    [
        (EXPECTED, 0.0, True),
        (EXPECTED * 1.009, 0.01, True),
        (EXPECTED * 1.011, 0.01, False),
        (EXPECTED + torch.tensor([1e-6, 0]), 0.0, False),
        (torch.tensor([3.0, torch.nan]), 0.01, False),
    ],
)
def test_right_is_within_the_tolerance_of_the_norm(answer, tolerance, right, caplog):
    trial = KernelTrial("a sum", "candidate", "reference", tolerance, runs=1)
    won = trial.cases_won([case(candidate=answers(answer))], timer(0.1, 1) if right else never)
    assert won == int(right)
    assert ("candidate is not used: its answer for a case differs by" in caplog.text) is not right


def test_equal_zeros_are_right():
    zeros = lambda: torch.zeros(2)  # noqa: E731
    assert TRIAL.cases_won([case(candidate=zeros, reference=zeros)], timer(0.1, 1)) == 1


def test_an_answer_that_changes_is_wrong(caplog):
    late = answers(EXPECTED, EXPECTED, EXPECTED + 1e-6)
    assert TRIAL.cases_won([case(candidate=late)], never) == 0
    assert "its answer for a case changes from run to run" in caplog.text


def test_an_answer_in_place_is_compared_as_it_was():
    """A recording writes each answer to the same memory."""
    place = torch.zeros(2)
    numbers = answers(EXPECTED, EXPECTED, EXPECTED + 1e-6)
    assert TRIAL.cases_won([case(candidate=lambda: place.copy_(numbers()))], never) == 0
    both = case(
        candidate=lambda: place.copy_(EXPECTED + 1), reference=lambda: place.copy_(EXPECTED)
    )
    assert TRIAL.cases_won([both], never) == 0


def test_what_is_not_written_is_seen(caplog):
    out = EXPECTED.clone()
    gap = TrialCase("a case", lambda: out, lambda: EXPECTED, lambda: out.fill_(torch.nan))
    assert TRIAL.cases_won([gap], never) == 0
    assert "differs by nan" in caplog.text


def test_wrong_in_the_last_case_is_used_in_none():
    wrong = case("large", answers(EXPECTED * 2))
    assert TRIAL.cases_won([case("small"), wrong], never) == 0


@pytest.mark.parametrize("where", ["candidate", "reference", "timer"])
def test_a_failure_leaves_the_reference(where, caplog):
    def fails(*_):
        raise RuntimeError("out of resources\nand more")

    calls = {where: fails} if where != "timer" else {}
    assert TRIAL.cases_won([case(**calls)], fails if where == "timer" else never) == 0
    assert "a sum: candidate is not used: out of resources" in caplog.text
    assert caplog.records[0].levelname == "WARNING"
