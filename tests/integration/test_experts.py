"""Models with experts over the whole path: chunks, hand-over, crowds, and cached prefixes."""

import asyncio
import json
import random
from dataclasses import replace

import pytest
import torch

from tests import tiny
from tests.engine.families import SERVED, save
from tests.integration.local import cluster

NEW_TOKENS = 24
LENGTHS = (1, 15, 16, 17, 40, 90, 130)


@pytest.fixture(params=["mixtral", "qwen3-moe", "gpt-oss-sinks"])
def made(request, tmp_path):
    """A folder with a tiny model and its tokenizer, and the reference."""
    name, extra = SERVED[request.param]
    reference = save(tmp_path, name, {**extra, "vocab_size": tiny.VOCABULARY})
    tiny.make_tokenizer().save_pretrained(tmp_path)
    ends = {"bos_token_id": tiny.BOS, "eos_token_id": tiny.EOS}
    (tmp_path / "generation_config.json").write_text(json.dumps(ends))
    return tmp_path, reference


def expected(reference, prompt):
    out = reference.generate(
        torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
    )
    return out[0, len(prompt) :].tolist()


async def ask(local, prompt):
    """The answer's tokens and the choice's summary."""
    done = await local.client.complete(
        prompt, max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True
    )
    return [token.token for token in done.choices[0].tokens], done.summary.choices[0]


@pytest.mark.parametrize("prefill_replicas", [1, 0])
async def test_answers_are_exact(config, made, prefill_replicas):
    """With one prefill replica KV is handed over; with none, prompts run beside decode rows."""
    folder, reference = made
    local_config = replace(
        config,
        model=replace(config.model, path=str(folder), dtype="float32", forward="compact"),
        prefill=replace(
            config.prefill, chunk_tokens=64, replicas=prefill_replicas, local_prefill_tokens=0
        ),
    )
    rng = random.Random(3)
    # Token 0 is padding to `generate`, which would not attend to it.
    prompts = [[rng.randrange(3, 256) for _ in range(length)] for length in LENGTHS]
    async with cluster(local_config) as local:
        answers = await asyncio.gather(*(ask(local, prompt) for prompt in prompts))
        again, summary = await ask(local, prompts[-1])
        await local.idle()
    wanted = [expected(reference, prompt) for prompt in prompts]
    assert [tokens for tokens, _ in answers] == wanted
    assert again == wanted[-1]
    assert summary.cached_tokens == 128
    assert prefill_replicas == 0 or summary.prefill_replica == "prefill-0"
