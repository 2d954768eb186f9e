"""The cost model: learns, shrugs off outliers, and never predicts less for more."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.placement.cost_model import CostModel, PrefillCost
from engine.scheduling.non_negative_fit import NonNegativeFit
from engine.scheduling.pass_cost import PassCosts, PassTiming
from engine.types.urgency import Urgency


def taught(samples, per_request=0.01, per_token=0.0006, quadratic=0.0, noise=None):
    """A cost that saw prompts computed alone, one after the other."""
    cost, now = PrefillCost(), 0.0
    for tokens in samples:
        seconds = per_request + per_token * tokens + quadratic * tokens * tokens / 2
        seconds *= noise() if noise else 1.0
        now += seconds + 0.5
        cost.learn(tokens, 0, seconds, now)
    return cost


def lengths(count, seed=0):
    chance = random.Random(seed)
    return [chance.randint(16, 1024) for _ in range(count)]


def test_before_anything_was_learned_it_is_optimistic_and_not_zero():
    cost = PrefillCost()
    assert not cost.learned
    assert 0 < cost.seconds(1024) < 0.5
    assert cost.seconds(0) == 0


def test_it_learns_what_prompts_cost():
    cost = taught(lengths(60))
    for tokens in (16, 200, 1024):
        assert cost.seconds(tokens) == pytest.approx(0.01 + 0.0006 * tokens, rel=0.15)


def test_it_learns_the_quadratic_part_where_there_is_one():
    cost = taught(lengths(120), quadratic=2e-6)
    assert cost.seconds(1024) == pytest.approx(0.01 + 0.0006 * 1024 + 1e-6 * 1024**2, rel=0.15)
    assert cost.seconds(512, 512) > cost.seconds(512) * 1.1


def test_a_few_wild_observations_change_little():
    calm = taught(lengths(80))
    chance = random.Random(1)
    wild = taught(lengths(80), noise=lambda: 50.0 if chance.random() < 0.05 else 1.0)
    assert wild.seconds(512) < 1.5 * calm.seconds(512)


def test_it_follows_a_replica_that_became_faster():
    cost, now = taught(lengths(40)), 1000.0
    for tokens in lengths(100, seed=2):
        now += 1.0
        cost.learn(tokens, 0, (0.01 + 0.0006 * tokens) / 10, now)
    assert cost.seconds(512) == pytest.approx((0.01 + 0.0006 * 512) / 10, rel=0.3)


def test_an_engine_that_is_made_faster_is_known_within_a_second_of_reports():
    """A first start: steps of 200 ms until the operations are compiled, then of 12."""
    costs, reports = CostModel(), 20
    for _ in range(500):
        costs.learn_step("one", 1, 0.2)
    assert costs.step_s("one", 8) > 0.15
    for _ in range(reports):
        costs.learn_step("one", 1, 0.012)
    assert costs.step_s("one", 1) == pytest.approx(0.012, rel=0.3)
    assert costs.step_s("one", 8) < 0.03


def test_what_more_streams_cost_is_still_known_when_all_became_faster():
    costs = CostModel()
    for number in range(400):
        costs.learn_step("one", 1 + number % 16, 0.1 + 0.01 * (number % 16))
    for _ in range(10):
        costs.learn_step("one", 1, 0.01)
    assert costs.step_s("one", 16) == pytest.approx(0.025, rel=0.3)


def test_a_quick_step_now_and_then_changes_little():
    costs = CostModel()
    for number in range(400):
        costs.learn_step("one", 4, 0.04 if number % 8 else 0.002)
    assert costs.step_s("one", 4) > 0.03


def test_what_becomes_faster_and_slower_by_turns_is_followed():
    """Somebody comes to the cores and leaves them, each time for a second of reports."""
    costs = CostModel()
    for turn in range(12):
        step_s = 0.012 if turn % 2 else 0.2
        for _ in range(20):
            costs.learn_step("one", 4, step_s)
        if turn > 1:
            assert costs.step_s("one", 4) == pytest.approx(step_s, rel=0.5)


def test_steps_are_never_believed_to_be_slower_than_they_were_known_to_be():
    costs = CostModel()
    for step_s in (0.03, 0.003, 3.0):
        for _ in range(200 if step_s < 1 else 20):
            costs.learn_step("one", 4, step_s)
    assert costs.step_s("one", 4) < 0.2


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_no_time_at_all_is_no_fault(seconds):
    fit = NonNegativeFit((0.002,), (1.0,))
    for _ in range(40):
        fit.observe((1.0,), seconds)
    assert fit.predict((1.0,)) < 0.002


def test_prompts_of_one_step_share_its_time():
    """Three prompts in each step: together they take the step, and not three times as long."""
    cost, now = PrefillCost(), 0.0
    for _ in range(40):
        now += 1.0
        for _ in range(3):
            cost.learn(100, 0, 0.3, now)
    assert 3 * cost.seconds(100) == pytest.approx(0.3, rel=0.1)


def test_prompts_that_take_turns_are_charged_once():
    """A short one passes a long one: the long one's time has the short one's in it."""
    cost, now = PrefillCost(), 0.0
    for _ in range(60):
        cost.learn(100, 0, 0.1, now + 0.2)
        cost.learn(900, 0, 1.0, now + 1.0)
        now += 5.0
    assert cost.seconds(100) + cost.seconds(900) == pytest.approx(1.0, rel=0.2)


def test_a_long_prompt_that_short_ones_pass_is_not_taken_for_a_cheap_one():
    """Each short one is charged what was computed of the long one before it."""
    cost, now = PrefillCost(), 0.0
    for tokens in lengths(80):
        began, half = now, 0.0005 * tokens
        now += half + 0.05
        cost.learn(64, 0, 0.05, now, began)
        now += half
        cost.learn(tokens, 0, now - began, now, began)
        now += 0.5
    assert cost.seconds(1000) == pytest.approx(1.0, rel=0.1)
    assert cost.seconds(64) < 0.15


def test_the_cost_of_a_prompt_beside_others_is_learned_separately():
    cost, now = PrefillCost(), 0.0
    token_s = dict(zip(Urgency, (0.0006, 0.0012, 0.0009, 0.0007), strict=True))
    for place, tokens in enumerate(lengths(240)):
        urgency = Urgency(place % 4)
        now += 5.0
        cost.learn(tokens, 0, 0.02 + tokens * token_s[urgency], now, urgency=urgency)
    for urgency, each_s in token_s.items():
        assert cost.seconds(800, urgency=urgency) == pytest.approx(0.02 + 800 * each_s, rel=0.1)


def test_a_higher_urgency_is_taken_to_be_faster_until_it_was_observed_and_when_that_is_forgotten():
    cost, now = PrefillCost(), 0.0

    def teach(count: int, token_s: dict[Urgency, float]) -> None:
        nonlocal now
        urgencies = list(token_s)
        for place, tokens in enumerate(lengths(count)):
            now += 5.0
            urgency = urgencies[place % len(urgencies)]
            cost.learn(tokens, 0, tokens * token_s[urgency], now, urgency=urgency)

    usual = {Urgency.NONE: 0.0005, Urgency.PROMPTS: 0.001}
    teach(120, usual)
    guesses_s = [cost.seconds(800, urgency=urgency) for urgency in Urgency]
    alone_s, beside_s, pressed_s, urgent_s = guesses_s
    assert alone_s < urgent_s < pressed_s < beside_s
    teach(20, {Urgency.PRESSED: 0.00052})
    assert cost.seconds(800, urgency=Urgency.PRESSED) == pytest.approx(0.416, rel=0.1)
    teach(300, usual)
    assert cost.seconds(800, urgency=Urgency.PRESSED) == pytest.approx(pressed_s, rel=0.1)


def test_pressed_prompts_are_known_once_the_fit_has_them():
    """Prompts that pass each other are not known one by one, until several are together."""
    cost, now = PrefillCost(), 0.0
    for place, tokens in enumerate(lengths(120)):
        now += 5.0
        cost.learn(
            tokens, 0, tokens * (0.001 if place % 2 else 0.0005), now, urgency=Urgency(place % 2)
        )
    guess_s = cost.seconds(800, urgency=Urgency.PRESSED)
    for _ in range(9):
        now += 0.4
        cost.learn(500, 0, 0.5, now, urgency=Urgency.PRESSED)
        assert cost.seconds(800, urgency=Urgency.PRESSED) >= 0.9 * guess_s


@given(
    st.lists(st.tuples(st.integers(1, 4096), st.floats(0, 5), st.floats(0, 3)), max_size=40),
    st.integers(1, 8192),
    st.integers(0, 4096),
    st.integers(0, 4096),
)
def test_more_tokens_never_take_less_time(samples, tokens, more, cached):
    cost, now = PrefillCost(), 0.0
    for length, seconds, pause in samples:
        now += pause
        cost.learn(length, 0, seconds, now, urgency=Urgency(length % 4))
    for urgency in Urgency:
        assert 0 <= cost.seconds(tokens, cached) <= cost.seconds(tokens, cached, urgency)
        assert cost.seconds(tokens, cached, urgency) <= cost.seconds(tokens + more, cached, urgency)
        assert cost.seconds(tokens, cached, urgency) <= cost.seconds(tokens, cached + more, urgency)
        if urgency > Urgency.PROMPTS:
            slower_s = cost.seconds(tokens, cached, Urgency(urgency - 1))
            assert cost.seconds(tokens, cached, urgency) <= slower_s * (1 + 1e-9)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(1e-5, 2)), max_size=60), st.integers(1, 64))
def test_a_larger_batch_never_steps_faster(samples, batch):
    costs = CostModel()
    for size, seconds in samples:
        costs.learn_step("d0", size, seconds)
    assert 0 <= costs.step_s("d0", batch) <= costs.step_s("d0", batch + 1)


def test_a_step_is_learned_per_replica_and_forgotten_with_it():
    costs = CostModel()
    for batch in range(1, 17):
        costs.learn_step("d0", batch, 0.01 + 0.002 * batch)
    assert costs.step_s("d0", 20) == pytest.approx(0.05, rel=0.15)
    assert costs.step_s("d1", 20) < 0.02
    costs.learn_stream("d0", 2.0)
    assert (costs.stream_s("d0"), costs.stream_s("d1")) == (2.0, None)
    costs.forget(["d1"])
    assert costs.step_s("d0", 20) < 0.02 and costs.stream_s("d0") is None


def test_the_flush_follows_what_it_sees_and_not_one_stall():
    costs = CostModel()
    costs.learn_flush(10.0)
    assert costs.flush_s < 0.01
    for _ in range(100):
        costs.learn_flush(0.02)
    assert costs.flush_s == pytest.approx(0.02, rel=0.05)


def test_a_fit_needs_no_more_than_its_guess():
    fit = NonNegativeFit((0.0, 1.0), (1.0, 1.0))
    assert fit.predict((1.0, 2.0)) == 2.0 and not fit.learned


@given(
    st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9), st.floats(0, 2)), max_size=30),
    st.integers(0, 30),
)
def test_features_that_are_added_later_were_0_before(samples, late):
    """As if the fit had had them from the beginning, to the last bit."""
    whole, grown = NonNegativeFit((0.1, 0.0), (1.0, 5.0)), NonNegativeFit((0.1,), (1.0,))
    for place, (first, second, seconds) in enumerate(samples):
        if place < late:
            whole.observe((first, 0.0), seconds)
            grown.observe((first,), seconds)
            continue
        if place == late:
            grown.add_features((5.0,))
        whole.observe((first, second), seconds)
        grown.observe((first, second), seconds)
    assert whole.predict((1.0, 1.0)) == grown.predict((1.0, 1.0))


GPU = PassCosts(PassTiming(0.0095, 2e-5), 2048, 2048)


def test_a_first_prompt_is_predicted_from_the_passes_that_the_replica_has_timed():
    cost = PrefillCost()
    assert cost.seconds(4096) > 0.8
    cost.report(GPU)
    assert cost.seconds(4096) == pytest.approx(2 * 0.0095 + 4096 * 2e-5, rel=0.01)
    assert cost.seconds(64) == pytest.approx(0.0108, rel=0.01)
    assert not cost.learned


def test_a_slow_report_makes_no_guess_worse():
    """A router that guesses too much would refuse the work that it could learn from."""
    cost = PrefillCost()
    guess_s = cost.seconds(300)
    cost.report(PassCosts(PassTiming(0.1, 0.01), 40, 512))
    assert cost.seconds(300) == pytest.approx(guess_s)


def taught_in_passes(prompts, jitter_s=0.0, rounds=40):
    """A cost that saw full passes of so many prompts of 64 tokens, one pass after the other."""
    cost, now = PrefillCost(), 0.0
    cost.report(GPU)
    for _ in range(rounds):
        took_s = 0.0095 + prompts * 64 * 2e-5
        now += took_s
        for place in range(prompts):
            cost.learn(64, 0, took_s, now + place * jitter_s, now - took_s, passes=1 / prompts)
    return cost


@pytest.mark.parametrize("prompts", [1, 4, 16, 32])
@pytest.mark.parametrize("jitter_s", [0.0, 5e-5])
def test_prompts_that_share_short_passes_cost_what_the_passes_take(prompts, jitter_s):
    """Passes of 10 ms: the prompts of one seemed consecutive, and all but the first one free."""
    cost = taught_in_passes(prompts, jitter_s)
    total_s = 0.0095 + prompts * 64 * 2e-5
    queued_s = cost.seconds(64, queued=True)
    if prompts == 32:
        assert prompts * queued_s == pytest.approx(total_s, rel=0.15)
    assert cost.seconds(64) >= queued_s > 0.02 * total_s / prompts


def test_a_pass_and_its_tokens_are_told_apart():
    cost, now, chance = PrefillCost(), 0.0, random.Random(0)
    cost.report(GPU)
    for _ in range(80):
        prompts = chance.choice((1, 2, 8, 30))
        took_s = 0.012 + prompts * 64 * 3e-5
        now += took_s + 0.1
        for _ in range(prompts):
            cost.learn(64, 0, took_s, now, now - took_s, passes=1 / prompts)
    assert cost.seconds(64) == pytest.approx(0.012 + 64 * 3e-5, rel=0.15)
    assert cost.seconds(64, queued=True) == pytest.approx(64 / 2048 * 0.012 + 64 * 3e-5, rel=0.3)


def test_a_prompt_in_many_passes_beside_streams_is_predicted_as_it_was():
    """A decode replica cuts passes short for its streams, and each pass waits for a step."""
    cost, now = PrefillCost(), 0.0
    cost.report(GPU)
    for tokens in lengths(80):
        now += 5.0
        cost.learn(tokens, 0, tokens * 0.001, now, passes=tokens / 64)
    assert cost.seconds(800) == pytest.approx(0.8, rel=0.1)


@given(
    st.lists(st.tuples(st.integers(1, 4096), st.floats(0, 2), st.floats(0, 2)), max_size=30),
    st.integers(1, 8192),
    st.integers(1, 2048),
)
def test_a_prompt_in_a_queue_never_costs_more_than_one_alone(samples, tokens, shared):
    cost, now = PrefillCost(), 0.0
    cost.report(PassCosts(PassTiming(0.01, 1e-5), shared, 2048))
    for length, seconds, pause in samples:
        now += pause
        cost.learn(length, 0, seconds, now, urgency=Urgency(length % 4), passes=length / 2048)
    for urgency in Urgency:
        queued_s = cost.seconds(tokens, 0, urgency, queued=True)
        assert 0 <= queued_s <= cost.seconds(tokens, 0, urgency) * (1 + 1e-9)
