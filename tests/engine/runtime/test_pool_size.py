"""The KV pool is sized when all else that needs memory is known."""

import pytest
import torch

from engine.config import KvConfig, ModelConfig
from engine.errors import ConfigError
from engine.kv.cache import KvCache
from engine.kv.layout import KvLayout, LayerShape
from engine.kv.memory import block_bytes
from engine.model import forward_selection as choose
from engine.model.cuda_graphs import BUCKETS
from engine.model.forward_selection import CompiledKernels, RecordedSteps
from engine.model_description import describe
from engine.runtime.engine import Engine
from engine.runtime.pool_size import pool_blocks, reserved_bytes
from tests import tiny
from tests.engine.memory.test_recordings import MIB, MeasuredMemory

LAYOUT = KvLayout((LayerShape(8, 128),) * 32, 16, "bfloat16", "m")
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
GIB = 2**30
ENOUGH = 10**9


@pytest.fixture
def emptied(monkeypatch):
    """A GPU whose cache must be emptied before its free memory is all there."""
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append(True))
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda device: ((60 if done else 40) * GIB, 80 * GIB)
    )
    return done


def test_the_cache_is_emptied_first_and_what_is_reserved_is_left(emptied):
    reserved = {"recorded steps": GIB, "links": 3 * GIB}
    blocks = pool_blocks(LAYOUT, CUDA, KvConfig(), ENOUGH, 1, reserved)
    assert blocks == int(60 * GIB * 0.9 - 4 * GIB) // block_bytes(LAYOUT)
    assert emptied


def test_replicas_of_one_gpu_divide_it(emptied):
    blocks = pool_blocks(LAYOUT, CUDA, KvConfig(memory_fraction=0.5), ENOUGH, 2, {"links": GIB})
    assert blocks == (15 - 1) * GIB // block_bytes(LAYOUT)


def test_a_replica_takes_no_more_than_it_can_use(emptied):
    assert pool_blocks(LAYOUT, CUDA, KvConfig(), 160, 1, {}) == 10


def test_no_room_beside_the_rest_is_refused(emptied):
    with pytest.raises(ConfigError, match=r"no block of 2\.0 MiB fits: 61,440\.0 MiB free"):
        pool_blocks(LAYOUT, CUDA, KvConfig(), ENOUGH, 1, {"links": 70 * GIB})


def test_on_a_cpu_nothing_is_reserved(monkeypatch):
    monkeypatch.setattr("engine.runtime.pool_size.free_bytes", lambda device: 8 * GIB)
    blocks = pool_blocks(LAYOUT, CPU, KvConfig(), ENOUGH, 1, {"links": 70 * GIB})
    assert blocks == 4 * GIB // block_bytes(LAYOUT)
    assert reserved_bytes(None, None, LAYOUT, CUDA) == {}


def test_a_long_prompt_has_room_where_steps_cannot_be_recorded(tmp_path, caplog):
    tiny.make(tmp_path)
    config = ModelConfig(path=str(tmp_path), dtype="float32", operations="torch")
    engine = Engine.load(describe(config), KvConfig(blocks=1), config, device=CPU, most_tokens=1)
    compiled = CompiledKernels(engine.runner, 512)
    assert compiled.reserve(engine.cache, MeasuredMemory()) == {"a long prompt": 7 * MIB}
    assert compiled.prepare() is None
    assert len([*compiled.pieces(engine.cache)]) > 5
    assert "a first batch failed" not in caplog.text


def test_a_trial_computes_the_longest_prompt_and_records_two_steps(tmp_path, monkeypatch):
    """On the CPU, with stand-ins for the graphs and for the device's memory."""
    recorded = []

    def graphs(device):
        def record(step):
            recorded.append(step.args[0])
            step()
            return step

        return record

    monkeypatch.setattr(choose, "CudaGraphs", graphs)
    tiny.make(tmp_path)
    config = ModelConfig(path=str(tmp_path), dtype="float32", operations="torch")
    engine = Engine.load(describe(config), KvConfig(blocks=4), config, device=CPU, most_tokens=1)
    steps = RecordedSteps(engine.runner, 512, BUCKETS[-1])
    lengths = []
    layers = engine.runner.layers
    monkeypatch.setattr(
        engine.runner, "layers", lambda batch: lengths.append(len(batch.tokens)) or layers(batch)
    )
    cache = KvCache(engine.cache.layout, 1, CPU, engine.runner.kv_format)
    memory = MeasuredMemory(100 * MIB, 300 * MIB, 310 * MIB)
    assert steps.reserve(cache, memory) == {
        "a long prompt": 7 * MIB,
        "recorded steps": (200 + (len(BUCKETS) - 1) * 10) * MIB,
    }
    assert recorded == [BUCKETS[-1], BUCKETS[0]]
    assert lengths == [512, BUCKETS[-1], BUCKETS[0]]
    assert engine.runner.replays is None
