"""Which transport a pair gets."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch
from torch.distributed import HashStore

from kv_transfer.errors import ChannelBroken, LinkRefused
from kv_transfer.transports import nccl
from kv_transfer.transports.selection import TransportSide, choose, open_channel
from kv_transfer.transports.transport import ChannelSpec


def side(transport="auto", device="cpu", process="a"):
    return TransportSide(transport, device, process)


@pytest.mark.parametrize(
    ("sender", "receiver", "transport"),
    [
        (side(), side(), "loopback"),
        (side(), side(process="b"), "gloo"),
        (side(device="cuda"), side(process="b"), "gloo"),
        (side(device="cuda:1"), side(device="cuda:2", process="b"), "nccl"),
        (side(device="cuda:1"), side(device="cuda:1", process="b"), "gloo"),
        (side("gloo"), side(), "gloo"),
        (side(), side("gloo"), "gloo"),
        (side("gloo", "cuda:1"), side("auto", "cuda:2", "b"), "gloo"),
    ],
)
def test_the_pair_gets_the_first_transport_whose_needs_it_meets(sender, receiver, transport):
    choice = choose(sender, receiver)
    assert choice.transport == transport
    assert choice.why


def test_two_processes_that_share_memory_use_it():
    choice = choose(side(), side(process="b"), None)
    assert choice.transport == "shared_memory"
    assert "witness" in choice.why


def test_two_processes_on_one_gpu_use_its_memory():
    one, other = side(device="cuda:1"), side(device="cuda:1", process="b")
    assert choose(one, other, None).transport == "cuda_ipc"
    choice = choose(one, other, "their containers have no folder in common")
    assert choice.transport == "gloo"
    assert "no folder in common" in choice.why


def test_cuda_ipc_is_refused_where_it_cannot_be():
    with pytest.raises(LinkRefused, match="cuda:1 here, on cuda:2 there"):
        choose(side("cuda_ipc", "cuda:1"), side(device="cuda:2", process="b"), None)
    with pytest.raises(LinkRefused, match="different hosts"):
        choose(
            side("cuda_ipc", "cuda:1"),
            side(device="cuda:1", process="b"),
            "they are on different hosts",
        )


def test_the_log_says_why_memory_is_not_shared():
    choice = choose(side(), side(process="b"), "they are on different hosts")
    assert choice.transport == "gloo"
    assert "different hosts" in choice.why


def test_shared_memory_is_refused_where_it_cannot_be():
    with pytest.raises(LinkRefused, match="different hosts"):
        choose(side("shared_memory"), side(process="b"), "they are on different hosts")
    with pytest.raises(LinkRefused, match="cuda:1 here, on cpu there"):
        choose(side("shared_memory", device="cuda:1"), side(process="b"), None)


@pytest.mark.parametrize(
    ("sender", "receiver", "reason"),
    [
        (side("gloo"), side("nccl"), "gloo here, nccl there"),
        (side("loopback"), side(process="b"), "one process"),
        (side("nccl"), side(device="cuda:1", process="b"), "CUDA on both"),
        (side("nccl", "cuda:1"), side(device="cuda:1", process="b"), "two ranks on one GPU"),
    ],
)
def test_a_refusal_names_the_unmet_need(sender, receiver, reason):
    with pytest.raises(LinkRefused, match=reason):
        choose(sender, receiver)


def spec(transport):
    device, store = torch.device("cpu"), HashStore()
    return ChannelSpec(transport, "p", 0, "127.0.0.1", device, 1.0, store)


def test_an_unknown_transport_is_refused():
    with pytest.raises(LinkRefused, match="pigeon"):
        open_channel(spec("pigeon"))


@pytest.mark.skipif(nccl.nccl_available(), reason="this machine has NCCL")
def test_nccl_says_that_it_is_unverified_and_where_it_cannot_run(caplog):
    nccl._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(ChannelBroken, match="no NCCL"):
                open_channel(spec("nccl"))
    assert [record.message for record in caplog.records if "UNVERIFIED" in record.message] == [
        "the nccl transport is UNVERIFIED between two GPUs: it has run on one alone"
    ]


def test_cuda_ipc_says_where_it_cannot_run():
    with pytest.raises(ChannelBroken, match="does not lie on a GPU"):
        open_channel(spec("cuda_ipc"))


def test_the_package_needs_none_of_the_clusters_parts():
    code = (
        "import sys, kv_transfer.sender, kv_transfer.receiver\n"
        "import kv_transfer.transports.fault_injection\n"
        "bad = {'ray', 'redis', 'pydantic', 'transformers'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
