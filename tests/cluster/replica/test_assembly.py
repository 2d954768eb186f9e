"""What a replica's links may take, and how a load without room is refused."""

import pytest
import torch

from cluster.config.schema import parse_config
from cluster.replica.assembly import LoadedModel, link_bytes, transfer_config
from engine.errors import ConfigError
from engine.runtime.engine import Engine
from engine.startup_timer import StartupTimer
from tests import tiny

MIB = 1 << 20


def config_of(prefill, decode, **kv):
    document = {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}, "kv": kv}
    return parse_config(document)


def test_links_of_a_gpu_are_counted_by_the_replicas_of_the_other_pool():
    """Four staging buffers of 32 MiB, and a communicator."""
    each = 4 * 32 * MIB
    assert link_bytes(config_of(8, 16), "cuda") == 16 * (each + 128 * MIB)
    assert link_bytes(config_of(1, 1, transport="cuda_ipc"), "cuda") == each
    assert link_bytes(config_of(1, 1, transport="gloo"), "cuda") == 0
    assert link_bytes(config_of(0, 4), "cuda") == 0
    assert link_bytes(config_of(8, 16), "cpu") == 0


def test_links_of_a_gpu_are_bounded_and_a_join_has_its_time():
    config = config_of(8, 16, join_timeout_s=33.0)
    assert transfer_config(config, "cuda").max_links == 32
    assert transfer_config(config, "cpu").max_links == 64
    assert {transfer_config(config, device).join_timeout_s for device in ("cpu", "cuda")} == {33.0}
    assert transfer_config(config_of(0, 1), "cuda").max_links == 2


async def test_out_of_memory_while_loading_is_one_line(tmp_path, monkeypatch):
    def load(*arguments, **options):
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has…\nx"
        )

    monkeypatch.setattr(Engine, "load", load)
    tiny.make(tmp_path)
    config = parse_config({"model": {"path": str(tmp_path), "name": "tiny"}})
    with pytest.raises(ConfigError, match=r"^tiny: out of memory at 2\.00 GiB: there is .* free"):
        await LoadedModel.load(config, 1, StartupTimer())
