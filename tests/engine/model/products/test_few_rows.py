"""Which products our kernel takes: where it is right and faster, and cuBLAS's otherwise."""

import logging
import re

import pytest
import torch

from engine.kernels.dependent_launch import DependentLaunch
from engine.model.fused_weights import Linear
from engine.model.ops_cuda import TritonOps
from engine.model.products.dependent_choice import choose_dependent
from engine.model.products.few_rows import FewRows
from tests.engine.kinds import decoder, kind_named


class Stub:
    """A kernel that multiplies as torch does, or wrongly."""

    def __init__(self, wrong=None):
        self._wrong = wrong
        self.rows = []

    def product(self, x, weights, out=None):
        self.rows.append(len(x))
        if self._wrong == "raises":
            raise RuntimeError("out of resources\nand more")
        answer = torch.nn.functional.linear(x, weights.weight, weights.bias)
        if self._wrong == "gap" and out is not None and len(x) > 1:
            answer[1] = out[1]
        if self._wrong == "race":
            answer += len(self.rows) * 1e-6
        if self._wrong == "off":
            answer *= 1.001
        return answer

    def poison(self):
        pass


def clock(*ratios):
    """Our seconds relative to cuBLAS's, for each number of rows in turn."""
    told = iter([share for ratio in ratios for share in (ratio, 1.0)])
    return lambda run: run() is None or next(told)


def chosen(stub, seconds):
    torch.manual_seed(0)
    weights = Linear(torch.randn(24, 40), torch.randn(24))
    few = FewRows(stub)
    few.choose(weights, seconds)
    return few, weights


@pytest.mark.parametrize(
    ("ratios", "most"),
    [((0.5,) * 5, 64), ((0.5, 0.5, 0.96, 0.98), 16), ((1.0,), 0), ((0.5, 0.99), 1)],
)
def test_our_kernel_is_taken_up_to_the_rows_where_it_is_faster(ratios, most, caplog):
    caplog.set_level(logging.INFO)
    stub = Stub()
    few, weights = chosen(stub, clock(*ratios))
    assert few.most_rows(weights) == most
    rows = "1 row" if most == 1 else f"{most} rows"
    used = f"own kernel up to {rows}" if most else "cuBLAS"
    assert f"product 24 x 40: {used} (1 row: " in caplog.text
    stub.rows.clear()
    for rows in (0, 1, most, most + 1, 70):
        few.product(torch.randn(rows, 40), weights)
    assert all(0 < rows <= most for rows in stub.rows)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("raises", "out of resources"),
        ("gap", "differs by nan"),
        ("race", "changes from run to run"),
        ("off", "differs by 0.001"),
    ],
)
def test_a_kernel_that_is_not_right_is_never_taken(wrong, reason, caplog):
    few, weights = chosen(Stub(wrong), clock(*(0.1,) * 5))
    assert few.most_rows(weights) == 0
    told = re.sub("its answer for .* rows? ", "", caplog.text)
    assert f"product 24 x 40: own kernel is not used: {reason}" in told


def test_a_shape_is_measured_once_and_other_types_never():
    stub = Stub()
    few, _ = chosen(stub, clock(*(0.5,) * 5))
    count = len(stub.rows)
    few.choose(Linear(torch.randn(24, 40), torch.randn(24)), clock())
    few.choose(Linear(torch.randn(24, 40).double()), clock())
    few.choose(Linear(torch.randn(3, 24, 40)), clock())
    assert len(stub.rows) == count
    assert few.most_rows(Linear(torch.randn(24, 40))) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_layer_with_our_kernels_is_the_layer_without(dtype):
    """The real kernels, interpreted or on the device, chosen by a clock that favours them."""
    kind = kind_named("Triton", dtype)
    model = kind.there(decoder(biased=True))
    ops, plain = TritonOps(model), TritonOps(model)
    ops.choose_kernels(clock(*(0.5,) * 40))
    layer = model.layers[0]
    own, theirs = ops.prepare(layer), plain.prepare(layer)
    for rows in (1, 7, 64, 65):
        hidden = kind.randn(rows, 64)
        got, expected = own.mlp(hidden), theirs.mlp(hidden)
        off = ((got - expected).double().norm() / expected.double().norm()).item()
        assert off < (2e-2 if dtype == "bfloat16" else 1e-5)
        assert off > 0 or rows == 65


def test_dependent_launch_is_taken_where_it_wins_with_equal_bits(caplog):
    caplog.set_level(logging.INFO)
    answer = torch.arange(4.0)
    for early, share, on, told in (
        (answer, 0.9, True, "dependent launch (a step: 900000.0 of 1000000.0 us)"),
        (answer, 0.98, False, "plain launch (a step: 980000.0 of 1000000.0 us)"),
        (answer + 1e-6, 0.9, False, "dependent launch is not used: its answer for a step differs"),
        (None, 0.9, False, "dependent launch is not used: no such option"),
    ):
        dependent = DependentLaunch()

        def chain(dependent=dependent, early=early):
            if dependent.on and early is None:
                raise TypeError("no such option")
            return early if dependent.on else answer

        def record(step):
            kept = step()
            return lambda: kept

        choose_dependent(dependent, chain, record, clock(share))
        assert dependent.on == on
        assert f"a chain of kernels: {told}" in caplog.text
