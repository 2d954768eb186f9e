"""The warm-up times its passes: a constant and a part for each token."""

from __future__ import annotations

import pytest
import torch

from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.model import warm_up
from engine.model.runner import ForwardOutput

PASS_S, TOKEN_S = 0.004, 2e-6


class PaperRunner:
    """A clock that each pass moves, and much further by the first pass of each length."""

    def __init__(self):
        self.seen = set()
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def layers(self, batch):
        yield from ()
        tokens = len(batch.tokens)
        self.now += PASS_S + tokens * TOKEN_S + (0 if tokens in self.seen else 0.03)
        self.seen.add(tokens)
        return ForwardOutput(torch.zeros(1, 1), lambda rows: torch.zeros(len(rows), 1))


@pytest.fixture
def cache():
    layout = KvLayout((LayerShape(1, 1),), 16, "float32", "paper")
    return KvCache(layout, 4, torch.device("cpu"))


def test_both_parts_of_a_pass_are_timed_without_what_the_first_passes_compile(cache, monkeypatch):
    runner = PaperRunner()
    monkeypatch.setattr(warm_up, "time", runner)
    timing = warm_up.time_passes(runner, cache, 4096)
    assert (timing.pass_s, timing.token_s) == pytest.approx((PASS_S, TOKEN_S))


def test_a_pass_that_fails_and_a_context_too_short_give_no_timing(cache):
    class Faulty(PaperRunner):
        def layers(self, batch):
            yield from ()
            raise RuntimeError("no kernel")

    assert warm_up.time_passes(Faulty(), cache, 4096) is None
    assert warm_up.time_passes(PaperRunner(), cache, 16) is None
