"""What is set for NCCL before its first communicator, and what its log tells."""

from pathlib import Path

import pytest

from kv_transfer.transports.nccl_settings import (
    NcclLog,
    missed_rdma,
    quiet_watchdog,
    rdma_wanted,
)

QUIET = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
# As NCCL 2.2x writes it with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT.
BY_IB = """\
node-1:88:91 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
node-1:88:91 [0] NCCL INFO Using network IB
node-1:88:93 [0] NCCL INFO Channel 00/1 : 0[0] -> 1[0] [send] via NET/IB/0(0)/GDRDMA/Shared
"""
BY_TCP = """\
node-1:88:91 [0] NCCL INFO NET/IB : No device found.
node-1:88:91 [0] NCCL INFO Using network Socket
node-1:88:93 [0] NCCL INFO Channel 00/1 : 1[0] -> 0[0] [receive] via NET/Socket/0/Shared
"""
BY_NVLINK = "node-1:88:93 [0] NCCL INFO Channel 00/1 : 0[0] -> 1[1] via P2P/CUMEM\n"


def test_the_watchdog_never_ends_the_process():
    environment = {}
    quiet_watchdog(environment)
    assert environment == QUIET


@pytest.mark.parametrize("name", [*QUIET, "NCCL_ASYNC_ERROR_HANDLING"])
def test_what_the_operator_set_stays(name):
    environment = {name: "1"}
    quiet_watchdog(environment)
    assert environment[name] == "1"
    # torch reads the older name too.
    assert len(environment) == len(QUIET)


def test_the_network_is_what_connections_since_the_last_join_use():
    environment = {}
    log = NcclLog(environment)
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["NCCL_DEBUG_SUBSYS"] == "INIT"
    assert log.networks() == set()
    with Path(environment["NCCL_DEBUG_FILE"]).open("a") as file:
        for text, network in ((BY_IB, "NET/IB"), (BY_TCP, "NET/Socket"), (BY_NVLINK, "P2P")):
            file.write(text)
            file.flush()
            assert log.networks() == {network}
            assert log.networks() == set()


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_FILE"])
def test_a_log_that_the_operator_reads_is_left_alone(name):
    environment = {name: "WARN"}
    assert NcclLog(environment).networks() == set()
    assert environment == {name: "WARN"}


def test_rdma_was_asked_for_by_a_variable_or_a_device(tmp_path):
    assert rdma_wanted({"NCCL_SOCKET_IFNAME": "eth0"}, tmp_path) is None
    assert rdma_wanted({"NCCL_NET": "Socket"}, tmp_path) is None
    assert rdma_wanted({"NCCL_NET": "IB"}, tmp_path) == "NCCL_NET=IB"
    assert rdma_wanted({"NCCL_IB_HCA": "mlx5"}, tmp_path) == "NCCL_IB_HCA=mlx5"
    (tmp_path / "uverbs0").touch()
    assert rdma_wanted({}, tmp_path) == f"{tmp_path}/uverbs0 is here"


def test_tcp_in_the_place_of_rdma_is_a_warning():
    assert missed_rdma({"NET/Socket"}, None) is None
    assert missed_rdma({"NET/IB"}, "NCCL_IB_HCA=mlx5") is None
    assert missed_rdma(set(), "NCCL_IB_HCA=mlx5") is None
    warning = missed_rdma({"NET/Socket"}, "NCCL_IB_HCA=mlx5")
    assert warning is not None
    assert "NCCL_IB_HCA=mlx5" in warning and "memlock" in warning
