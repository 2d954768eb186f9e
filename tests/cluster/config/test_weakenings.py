"""A rollout that protects less: each way is named, and nothing else is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.schema import TandemConfig, parse_config
from cluster.config.weakenings import weakenings

PROTECTED: dict[str, Any] = {
    "router": {"api_keys": "/keys.yaml", "hosts": ["a.example"], "origins": [], "max_waiting": 1},
    "tls": {
        "front_ends": {"certificate": "/c.pem", "key": "/k.pem"},
        "internal": {"certificate": "/c", "key": "/k", "authority": "/ca", "name": "n"},
        "redis": {"authority": "/ca", "certificate": None, "key": None},
    },
    "security": {"secret_file": "/secret"},
}
# Each way to protect less, and the beginning of its line.
WEAKER: dict[str, Any] = {
    "router.api_keys:": lambda config: config["router"].update(api_keys=None),
    "router.hosts:": lambda config: config["router"].update(hosts=["a.example", "*"]),
    "router.origins:": lambda config: config["router"].update(origins=["*"]),
    "tls.front_ends.certificate:": lambda config: config["tls"].update(front_ends=None),
    "tls.internal.authority:": lambda config: config["tls"]["internal"].update(authority="/other"),
    "tls.redis.authority:": lambda config: config["tls"].update(redis=None),
    "security.secret_file:": lambda config: config["security"].update(secret_file="/other"),
}
HARMLESS: list[Any] = [
    lambda config: config["router"].update(max_waiting=2),
    lambda config: config["router"]["hosts"].append("b.example"),
    lambda config: config["tls"]["redis"].update(certificate="/r.pem", key="/rk.pem"),
    lambda config: config["tls"]["internal"].update(certificate="/renewed", key="/renewed.key"),
]


class Plain:
    """A configuration as plain data, also with sections that a version does not have."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def to_dict(self) -> dict[str, Any]:
        return self._data


def changed(*changes: Any) -> Any:
    data = copy.deepcopy(PROTECTED)
    for change in changes:
        change(data)
    return Plain(data)


@given(st.sets(st.sampled_from(sorted(WEAKER))), st.sets(st.sampled_from(range(len(HARMLESS)))))
def test_each_weakening_is_named_and_nothing_else_is(weaker, harmless):
    config = changed(*(HARMLESS[n] for n in harmless), *(WEAKER[name] for name in weaker))
    found = weakenings(Plain(PROTECTED), config)
    assert {name for name in WEAKER if any(line.startswith(name) for line in found)} == weaker
    sections = {line.split(":")[0].rpartition(".")[0] for line in found}
    assert sections <= {name.rpartition(".")[0] for name in weaker}


@given(st.sets(st.sampled_from(sorted(WEAKER))))
def test_what_undoes_a_removal_or_an_opening_weakens_nothing(weaker):
    """Except that a secret or an authority that becomes another is named either way."""
    replaced = {"tls.internal.authority:", "security.secret_file:"}
    before = changed(*(WEAKER[name] for name in weaker - replaced))
    assert weakenings(before, Plain(PROTECTED)) == []


@pytest.mark.parametrize("source", ["/other.yaml", "redis", None])
def test_another_source_of_keys_is_named_with_both(source):
    (line,) = weakenings(
        Plain(PROTECTED), changed(lambda config: config["router"].update(api_keys=source))
    )
    assert line.startswith("router.api_keys: /keys.yaml")
    assert ("removed" in line) == (source is None)


def test_real_configurations_are_compared_too():
    with_keys = parse_config({"router": {"api_keys": "/keys.yaml"}})
    assert weakenings(with_keys, TandemConfig()) == ["router.api_keys: /keys.yaml removed"]
    assert weakenings(TandemConfig(), with_keys) == weakenings(with_keys, with_keys) == []
