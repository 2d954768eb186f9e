"""Ports and Redis, with real ones."""

from __future__ import annotations

from cluster.config.schema import parse_config
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.doctor import network
from cluster.doctor.findings import Severity
from cluster.doctor.network import look_at_ports, look_at_redis
from cluster.sockets import listening_socket


def severities(findings):
    return [(one.subject, one.severity) for one in findings]


def test_a_port_that_is_taken_is_named():
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        config = parse_config({"router": {"http_port": port, "grpc_port": 0}})
        http, rpc, _ = look_at_ports(config)
    assert (http.severity, rpc.severity) == (Severity.WARNING, Severity.OK)
    assert str(port) in http.found and "--port" in http.change


def test_a_real_redis_is_well_and_one_that_is_gone_is_an_error():
    redis = EmbeddedRedis.start()
    try:
        config = parse_config({"directory": {"url": redis.url}})
        found = list(look_at_redis(config))
    finally:
        redis.stop()
    assert {one.subject for one in found} == {"Redis", "clock"}
    assert {one.severity for one in found} <= {Severity.OK, Severity.WARNING}
    assert found[0].severity is Severity.OK and found[-1].severity is Severity.OK
    assert severities(look_at_redis(config)) == [("Redis", Severity.ERROR)]
    assert severities(look_at_redis(parse_config({}))) == [("Redis", Severity.OK)]


def test_what_is_wrong_with_a_redis_is_said():
    assert network.judged_version("5.0.7").severity is Severity.ERROR
    assert network.judged_speed(0.02).severity is Severity.WARNING
    evicting = {"maxmemory_policy": "allkeys-lru", "maxmemory": 1 << 20}
    assert network.judged_eviction(evicting).severity is Severity.WARNING
    assert network.judged_clock(-3.0).severity is Severity.WARNING
