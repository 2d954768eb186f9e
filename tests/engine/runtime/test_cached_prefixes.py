"""With cached prefixes, output equals `generate` token for token: the engine under a scheduler."""

import random

import pytest
import torch

from decode_pool.batch_size import BatchSize
from decode_pool.scheduler import DecodeScheduler
from engine.config import KvConfig, ModelConfig
from engine.errors import Internal
from engine.kv.block_pool import BlockPool
from engine.kv.prefix_digest import identity_of
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.runtime.engine_thread import EngineWorker
from engine.scheduling.prompt_order import PromptOrder
from engine.types.sampling_params import SamplingParams
from engine.types.sequence import Sequence
from tests.engine.families import SERVED, VOCABULARY, save

NEW_TOKENS = 12
FAMILIES = ("llama", "qwen2-sliding", "gemma3-sliding", "phi")


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny matrices: two threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Served:
    """One model, its reference, and what computes prompt and answer of a crowd."""

    def __init__(self, folder, family, blocks):
        self.reference = save(folder, *SERVED[family])
        config = ModelConfig(path=str(folder), dtype="float32")
        self.engine = Engine.load(describe(config), KvConfig(blocks=blocks), config, most_tokens=1)
        self.pool = BlockPool(blocks)
        layout = self.engine.cache.layout
        self.scheduler = DecodeScheduler(
            self.pool,
            PromptOrder(64),
            BatchSize(16, 1.0),
            block_size=layout.block_size,
            max_waiting=100,
            chunk_tokens=64,
            identity=identity_of(layout),
        )
        self.preemptions = 0

    def answer(self, prompts, tenant="default", new_tokens=NEW_TOKENS):
        """All prompts at once; returns the sequences when each has its answer."""
        greedy = SamplingParams(temperature=0.0, max_tokens=new_tokens)
        crowd = [
            Sequence(str(number), list(prompt), len(prompt), greedy, tenant=tenant)
            for number, prompt in enumerate(prompts)
        ]
        for new in crowd:
            self.scheduler.offer_prompt(new, 0.0)
        for _ in range(2000):
            self.scheduler.grant()
            steps = self.compute(self.scheduler.schedule)
            chunks = self.compute(lambda: self.scheduler.schedule_chunk(0.0))
            if not steps and not chunks:
                break
            for sequence in (*steps, *chunks):
                if sequence.output_tokens == new_tokens:
                    self.preemptions += self.scheduler.preemptions(sequence.owner)
                    self.scheduler.remove(sequence.owner)
        assert all(sequence.output_tokens == new_tokens for sequence in crowd)
        return crowd

    def compute(self, schedule):
        """What is due now; returns its sequences."""
        spans = schedule()
        if spans:
            for span, sampled in zip(spans, self.engine.forward(spans), strict=True):
                if sampled is not None:
                    span.sequence.tokens.append(sampled.token)
        return [span.sequence for span in self.scheduler.complete(spans)]

    def check(self, crowd):
        for sequence in crowd:
            expected = self.reference.generate(
                torch.tensor([sequence.tokens[: sequence.prompt_tokens]]),
                max_new_tokens=sequence.output_tokens,
                do_sample=False,
                eos_token_id=None,
            )
            assert sequence.tokens == expected[0].tolist()


def words(seed, count):
    rng = random.Random(seed)
    return [rng.randrange(3, VOCABULARY) for _ in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_system_prompt_and_the_turns_of_a_chat(family, tmp_path):
    served = Served(tmp_path, family, blocks=100)
    system = words(0, 70)
    (first,) = served.answer([system + words(1, 9)])
    assert first.cached_tokens == 0
    crowd = served.answer([system + words(seed, 3 + seed) for seed in range(2, 8)])
    assert [sequence.cached_tokens for sequence in crowd] == [64] * 6
    served.check([first, *crowd])
    turn = first
    for seed in range(10, 13):
        prompt = turn.tokens + words(seed, 7)
        kept = (len(turn.tokens) - 1) // 16 * 16
        (turn,) = served.answer([prompt])
        assert turn.cached_tokens == kept
        served.check([turn])


def test_the_same_prompt_twice_and_never_for_another_tenant(tmp_path):
    served = Served(tmp_path, "llama", blocks=60)
    prompt = words(0, 64)
    mine = [*served.answer([prompt]), *served.answer([prompt])]
    assert [sequence.cached_tokens for sequence in mine] == [0, 48]
    foreign = [*served.answer([prompt], "other"), *served.answer([prompt], "other")]
    assert [sequence.cached_tokens for sequence in foreign] == [0, 48]
    served.check([*mine, *foreign])


def test_after_eviction_and_with_preemption_in_a_crowd_that_shares_a_prefix(tmp_path):
    served = Served(tmp_path, "llama", blocks=20)
    system = words(0, 37)
    for wave in range(3):
        prompts = [system + words(10 * wave + n, 2 + 3 * n) for n in range(6)]
        crowd = served.answer(prompts, new_tokens=50)
        served.check(crowd)
    assert served.preemptions > 0
    assert served.pool.evictions > 0
    assert any(sequence.cached_tokens for sequence in crowd)
    counts = served.pool.counts()
    assert counts.free + counts.cached == counts.total


async def test_what_a_faulty_request_left_is_overwritten_before_it_is_given_out(tmp_path):
    served = Served(tmp_path, "llama", blocks=8)
    prompt = words(0, 64)
    (healthy,) = served.answer([prompt])
    for layer in served.engine.cache.layers:
        layer[:, served.pool.match(healthy.chain.digests)[0]] = float("nan")
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS)
    faulty = Sequence("faulty", list(prompt), len(prompt), greedy)
    served.scheduler.offer_prompt(faulty, 0.0)
    served.scheduler.grant()
    spans = served.scheduler.schedule_chunk(0.0)
    (outcome,) = served.engine.forward(spans)
    assert isinstance(outcome, Internal)
    served.pool.condemn("faulty")
    served.scheduler.complete(spans)
    served.scheduler.remove("faulty")
    assert served.pool.match(healthy.chain.digests) == []
    assert served.pool.counts().quarantined == 4
    worker = EngineWorker(served.engine)
    await worker.scrub(served.pool)
    worker.close()
    assert served.pool.counts().quarantined == 0
    crowd = served.answer([prompt, words(1, 20)])
    assert crowd[0].cached_tokens == 0
    served.check(crowd)
