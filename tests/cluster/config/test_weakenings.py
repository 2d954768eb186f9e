"""A rollout that protects less: each way is named, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.deployment import DirectoryConfig
from cluster.config.router import RouterConfig
from cluster.config.schema import TandemConfig, parse_config
from cluster.config.security import SecurityConfig
from cluster.config.weakenings import restart_notices, weakenings
from cluster.discovery.rollout import next_config
from engine.config import KvConfig
from kv_transfer.transports.registry import configurable_names

PROTECTED = TandemConfig(
    router=RouterConfig(api_keys="/keys.yaml", hosts=("a.example",)),
    directory=DirectoryConfig(url="redis://redis:6379/0"),
    security=SecurityConfig("/secret"),
)
# Each way to protect less, by the beginning of its line.
WEAKER = {
    "router.api_keys:": {"api_keys": None},
    "router.hosts:": {"hosts": ("a.example", "*")},
    "router.origins:": {"origins": ("https://a.example",)},
}
HARMLESS = [{"max_waiting": 2}, {"tokenizer_threads": 3}, {"metric_tenants": 1}]


def changed(*changes):
    router = PROTECTED.router
    for change in changes:
        router = replace(router, **change)
    return replace(PROTECTED, router=router)


@given(st.sets(st.sampled_from(sorted(WEAKER))), st.sets(st.sampled_from(range(len(HARMLESS)))))
def test_each_weakening_is_named_and_nothing_else_is(weaker, harmless):
    config = changed(*(HARMLESS[n] for n in harmless), *(WEAKER[name] for name in weaker))
    found = weakenings(PROTECTED, config)
    assert len(found) == len(weaker)
    assert {name for name in WEAKER if any(line.startswith(name) for line in found)} == weaker


@given(st.sets(st.sampled_from(sorted(WEAKER))))
def test_what_undoes_a_weakening_weakens_nothing(weaker):
    assert weakenings(changed(*(WEAKER[name] for name in weaker)), PROTECTED) == []


@pytest.mark.parametrize("key", ["hosts", "origins"])
def test_each_added_host_and_origin_is_named(key):
    known, added = ("http://a", "http://b") if key == "origins" else ("a.example", "b.example")
    before = changed({key: (known,)})
    assert weakenings(before, changed({key: (known, added)})) == [f"router.{key}: {added} added"]
    assert weakenings(before, changed({key: (added,)})) == [f"router.{key}: {added} added"]
    assert weakenings(before, changed({key: ()})) == []
    assert weakenings(changed({key: ("*",)}), changed({key: (known, added)})) == []


RANKS = (("shared_memory", "cuda_ipc", "loopback"), ("auto",), ("gloo", "nccl"), ("nixl",))


def test_a_transport_that_more_processes_can_read_is_named():
    assert {name for rank in RANKS for name in rank} == set(configurable_names())

    def moved(before, after):
        one, other = (TandemConfig(kv=KvConfig(transport=name)) for name in (before, after))
        return weakenings(one, other)

    for above, rank in enumerate(RANKS):
        for before in rank:
            for below, others in enumerate(RANKS):
                for after in others:
                    assert bool(moved(before, after)) == (below > above), (before, after)
    (line,) = moved("shared_memory", "gloo")
    assert line.startswith("kv.transport: shared_memory becomes gloo")


def test_texts_in_the_request_log_are_a_weakening():
    texts = parse_config({"request_log": {"texts": True}})
    (line,) = weakenings(TandemConfig(), texts)
    assert line.startswith("request_log.texts:")
    assert weakenings(texts, TandemConfig()) == weakenings(texts, texts) == []


# The keys of the sections in which a key can protect: each is weighed, kept by a rollout, or does
# not protect. A new key must be put into one of the lists.
WEIGHED = {"router.api_keys", "router.hosts", "router.origins", "kv.transport"}
WEIGHED |= {"request_log.texts"}
KEPT = {"router.host", "router.http_port", "router.grpc_port"}
KEPT |= {"ray.address", "ray.dashboard_host", "ray.dashboard_port"}
KEPT_SECTIONS = {"directory", "security", "tls"}
UNPROTECTING = {
    "router": {
        "max_message_bytes", "max_requests", "max_waiting", "kv_overcommit", "request_timeout_s",
        "failover_timeout_s", "tokenizer_threads", "metric_tenants", "replicas", "tool_parser",
        "reasoning_parser",
    },
    "ray": {"ready_timeout_s", "drain_s", "surge_percent", "shares"},
    "kv": {
        "block_size", "blocks", "memory_fraction", "parked_fraction", "lease_s", "silence_s",
        "join_timeout_s", "prefix_cache", "warm_prefixes", "dtype",
    },
    "request_log": {
        "rows", "folder", "file_bytes", "file_s", "keep_files", "prefill_price", "decode_price",
    },
    "model": {
        "path", "name", "dtype", "context_tokens", "forward", "operations", "step_timeout_s",
    },
}  # fmt: skip
UNPROTECTING_SECTIONS = {"prefill", "decode", "endpoints", "tenants", "scaling", "journal"}
UNPROTECTING_SECTIONS |= {"tracing"}  # traces have no texts


def test_each_key_of_the_configuration_has_been_judged():
    document = TandemConfig().to_dict()
    assert set(document) == {*KEPT_SECTIONS, *UNPROTECTING_SECTIONS, *UNPROTECTING}
    for section, harmless in UNPROTECTING.items():
        judged = {key.partition(".")[2] for key in WEIGHED | KEPT if key.startswith(f"{section}.")}
        assert set(document[section]) == judged | harmless, section


def test_a_rollout_that_adds_keys_tells_what_stays_open_until_a_new_start():
    keys = parse_config({"router": {"api_keys": "/keys.yaml"}})
    (line,) = restart_notices(TandemConfig(), keys)
    assert "Ray's pages of metrics stay open" in line and "tandem serve" in line
    assert restart_notices(keys, keys) == restart_notices(keys, TandemConfig()) == []
    elsewhere = parse_config({"ray": {"address": "head:6379"}})
    assert restart_notices(elsewhere, keys) == []


def test_a_rollout_tells_that_another_tls_stays_until_a_new_start():
    one, other = (
        parse_config({"tls": {"front_ends": {"certificate": name, "key": "/k.pem"}}})
        for name in ("/a.pem", "/b.pem")
    )
    for running, requested in ((one, TandemConfig()), (TandemConfig(), one), (one, other)):
        (line,) = restart_notices(running, requested)
        assert line.startswith("the running `tls` stays")
    assert restart_notices(one, one) == []


@pytest.mark.parametrize("source", ["/other.yaml", "redis", None])
def test_another_source_of_keys_is_named_with_both(source):
    (line,) = weakenings(PROTECTED, changed({"api_keys": source}))
    assert line.startswith("router.api_keys: /keys.yaml")
    assert ("removed" in line) == (source is None)


def test_configurations_as_they_are_read_are_compared_too():
    with_keys = parse_config({"router": {"api_keys": "/keys.yaml"}})
    assert weakenings(with_keys, TandemConfig()) == ["router.api_keys: /keys.yaml removed"]
    assert weakenings(TandemConfig(), with_keys) == weakenings(with_keys, with_keys) == []


def test_tls_and_the_secret_cannot_be_rolled_out_of_a_cluster():
    running = parse_config(
        {
            "security": {"secret_file": "/secret"},
            "tls": {"front_ends": {"certificate": "/c.pem", "key": "/k.pem"}},
        }
    )
    taken = next_config(running, TandemConfig())
    assert (taken.tls, taken.security) == (running.tls, running.security)
