"""FP8 weights and FP8 KV over the whole path: what one engine gives, two pools give too."""

from dataclasses import replace

import pytest

from cluster.config.schema import TandemConfig
from tests import tiny
from tests.fp8_models import save_fp8
from tests.integration.local import cluster
from tests.integration.test_prefixes import PROMPT, ask, expected


@pytest.fixture
def in_fp8(config) -> TandemConfig:
    return replace(config, kv=replace(config.kv, dtype="fp8_e4m3"))


async def answers(config):
    """To a prompt, and to a prompt that goes on behind it; and what was cached of the second."""
    async with cluster(config) as local:
        first, _ = await ask(local, PROMPT)
        second, summary = await ask(local, [*PROMPT, *first, 1, 2, 3])
        await local.idle()
        return first, second, summary.cached_tokens


@pytest.mark.parametrize("transport", ["auto", "gloo"])
async def test_fp8_kv_that_is_handed_over_gives_what_one_engine_gives(in_fp8, model, transport):
    alone = replace(in_fp8, prefill=replace(in_fp8.prefill, replicas=0))
    first, second, cached = await answers(alone)
    assert cached > 0
    two = replace(in_fp8, kv=replace(in_fp8.kv, transport=transport))
    assert await answers(two) == (first, second, cached)
    assert first != expected(model, PROMPT)


async def test_an_fp8_model_gives_what_its_weights_mean(config, tmp_path):
    reference = tiny.make(tmp_path)
    save_fp8(tmp_path, reference, "fine-grained")
    config = replace(config, model=replace(config.model, path=str(tmp_path)))
    async with cluster(config) as local:
        tokens, _ = await ask(local, PROMPT)
        assert tokens == expected(reference, PROMPT)
        await local.idle()
