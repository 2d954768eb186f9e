"""200 prompts through a real cluster, 16 at a time: greedy output equals `generate`."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tandem_client import Client
from tests import exactness
from tests.e2e.crowd import crowd
from tests.e2e.serving import serve

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROMPTS = 200
AT_ONCE = 16
# Two prompts of 1,500 tokens fit, sixteen requests do not: they get in each other's way.
# That they can be preempted, they are promised more blocks than there are, and none is late.
CONFIG = """
kv: {blocks: 220}
router: {kv_overcommit: 100.0}
endpoints: {chat: {max_output_tokens: 64, ttft_budget_ms: 600000, itl_budget_ms: 60000}}
"""
SHAPES = ((1, 1), (2, 2))


@pytest.fixture(scope="module")
def cases(model):
    return exactness.make_cases(model, PROMPTS)


@pytest.fixture(scope="module")
def sampled(cases):
    """Twenty of them with seeded noise."""
    return [
        replace(c, sampling=replace(c.sampling, temperature=0.9, top_p=0.95, top_k=50, seed=number))
        for number, c in enumerate(cases[:20])
    ]


@pytest.fixture(scope="module")
def answers(cases, sampled, model_folder, tmp_path_factory):
    """By shape: the greedy answers, how many preemptions they saw, and the sampled answers."""
    results = {}
    for prefill, decode in SHAPES:
        folder = tmp_path_factory.mktemp("serve")
        (folder / "config.yaml").write_text(CONFIG)
        arguments = ["--model", str(model_folder), "--dtype", "float32"]
        arguments += ["--config", str(folder / "config.yaml")]
        arguments += ["--prefill-replicas", str(prefill), "--decode-replicas", str(decode)]
        with serve(*arguments, folder=folder) as serving:
            results[prefill, decode] = asyncio.run(_all(serving.grpc, cases, sampled))
    return results


async def _all(address, cases, sampled):
    async with Client(address) as client:
        greedy = await crowd(client, cases, AT_ONCE)
        together = await crowd(client, sampled, AT_ONCE)
        alone = await crowd(client, sampled[:8], 1)
    preemptions = sum(summary.choices[0].preemptions for _, summary in greedy)
    tokens = [[tokens for tokens, _ in group] for group in (greedy, together, alone)]
    return tokens[0], preemptions, tokens[1], tokens[2]


def test_the_answers_are_worth_comparing(cases):
    assert len(cases) == PROMPTS
    assert exactness.distinct(cases) >= 20
    assert {1, 1500} <= {len(case.prompt) for case in cases}
    assert sum(len(case.expected) == 1 for case in cases) == 2


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def test_greedy_equals_generate(shape, answers, cases, model, capsys):
    got, preemptions, _, _ = answers[shape]
    different = [
        (case, answer) for case, answer in zip(cases, got, strict=True) if answer != case.expected
    ]
    excused = [case for case, answer in different if exactness.excused(model, case, answer)]
    with capsys.disabled():
        print(
            f"\n{shape[0]}x{shape[1]}: {len(cases) - len(different)} of {len(cases)} equal, "
            f"{len(excused)} excused as ties, {preemptions} preemptions, "
            f"{exactness.distinct(cases):.1f} distinct tokens of 64"
        )
    assert len(excused) == len(different)
    if shape == (1, 1):
        assert preemptions > 0


def test_seeded_sampling_knows_no_crowd_and_no_shape(answers):
    _, _, together, alone = answers[1, 1]
    _, _, elsewhere, alone_elsewhere = answers[2, 2]
    assert together == elsewhere
    assert alone == alone_elsewhere == together[: len(alone)]
