"""Whether the configured shares can be placed on this machine."""

from __future__ import annotations

import pytest

from cluster.config.schema import parse_config
from cluster.doctor.findings import Severity
from cluster.doctor.placement import look_at_placement


def found(shares, gpus=0, **ray):
    config = parse_config({"decode": {"replicas": 2}, "ray": {"shares": shares} | ray})
    return [(one.severity, one.found) for one in look_at_placement(config, gpus)]


@pytest.mark.parametrize(("gpus", "severity"), [(0, Severity.ERROR), (1, Severity.OK)])
def test_the_gpus_that_replicas_ask_for_must_be_there(gpus, severity):
    ((seen, text),) = found({"decode": {"gpus": 0.5}}, gpus)
    assert seen is severity
    assert ("ask for 1 GPUs" in text) is (severity is Severity.ERROR)


@pytest.mark.parametrize(("share", "severity"), [(0.6, Severity.WARNING), (0.5, Severity.OK)])
def test_a_replica_takes_its_share_of_one_gpu(share, severity):
    shares = {"prefill": {"gpus": share}, "decode": {"gpus": share}}
    assert [seen for seen, _ in found(shares, 2)] == [severity]


def test_thirds_of_a_gpu_fill_it():
    shares = {"prefill": {"gpus": 1 / 3}, "decode": {"gpus": 1 / 3}}
    assert [seen for seen, _ in found(shares, 1)] == [Severity.OK]


def test_a_ray_of_its_own_has_no_custom_resources():
    ((severity, text),) = found({"prefill": {"resources": {"rack_a": 1}}})
    assert severity is Severity.ERROR and "rack_a" in text


def test_nothing_is_said_without_shares_or_of_another_cluster():
    assert found({}) == []
    assert found({"decode": {"gpus": 1}}, address="10.0.0.1:6379") == []
