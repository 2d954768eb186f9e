"""A rollout that protects less: each way is named, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.deployment import DirectoryConfig
from cluster.config.router import RouterConfig
from cluster.config.schema import TandemConfig, parse_config
from cluster.config.weakenings import weakenings
from cluster.discovery.rollout import next_config

PROTECTED = TandemConfig(
    router=RouterConfig(api_keys="/keys.yaml", hosts=("a.example",)),
    directory=DirectoryConfig(url="redis://redis:6379/0"),
)
# Each way to protect less, by the beginning of its line.
WEAKER = {
    "router.api_keys:": {"api_keys": None},
    "router.hosts:": {"hosts": ("a.example", "*")},
    "router.origins:": {"origins": ("*",)},
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


def test_more_hosts_by_name_weaken_nothing():
    assert weakenings(PROTECTED, changed({"hosts": ("a.example", "b.example")})) == []


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
