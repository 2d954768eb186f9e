"""GPUs, with the answers of commands that a test gives."""

from __future__ import annotations

from cluster.doctor.findings import Severity
from cluster.doctor.gpus import Gpu, command_output, look_at_gpus

H100 = Gpu("NVIDIA H100", 80 << 30, (9, 0))
TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity
GPU0\t X \tNV18\tSYS\tPIX\t0-15
GPU1\tNV18\t X \tSYS\tSYS\t0-15
GPU2\tSYS\tSYS\t X \tSYS\t0-15
NIC0\tPIX\tSYS\tSYS\t X
"""


def by_subject(findings):
    return {one.subject: one for one in findings}


def test_devices_their_links_and_nccl_are_named():
    found = by_subject(look_at_gpus([H100] * 3, "2.28.9", lambda _: TOPOLOGY))
    assert found["GPU 0"].found == "NVIDIA H100, 80 GiB, 9.0"
    assert found["GPU links"].found == "1 x NV18, 2 x SYS"
    assert (found["NCCL"].severity, found["NCCL"].found) == (Severity.OK, "2.28.9")


def test_an_old_device_and_a_build_without_nccl_are_warnings():
    found = by_subject(look_at_gpus([Gpu("V100", 16 << 30, (7, 0))], None, lambda _: None))
    assert found["GPU 0"].severity is found["NCCL"].severity is Severity.WARNING
    assert "GPU links" not in found


def test_a_driver_whose_devices_torch_does_not_see_is_an_error():
    (found,) = look_at_gpus([], None, lambda _: "NVIDIA H100\nNVIDIA H100\n")
    assert found.severity is Severity.ERROR and "knows 2" in found.found
    (found,) = look_at_gpus([], None, lambda _: None)
    assert found.severity is Severity.NOTE


def test_a_command_that_is_not_there_or_fails_has_no_output():
    assert command_output(["tandem-has-no-such-command"]) is None
    assert command_output(["false"]) is None
    assert command_output(["echo", "here"]) == "here\n"
