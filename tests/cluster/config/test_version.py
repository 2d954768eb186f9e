"""The version of a configuration: the same for the same settings, and without secrets."""

from __future__ import annotations

import json
import string
from dataclasses import replace

import pytest

from cluster.config.schema import load_config, parse_config
from cluster.config.version import config_version
from cluster.discovery.rollout import document_of
from protos.wire.secret import made


def test_the_same_settings_have_the_same_version_however_they_were_written() -> None:
    written = parse_config({"kv": {"block_size": 16}, "decode": {"max_waiting": 256}})
    version = config_version(written)
    assert version == config_version(parse_config({}))
    assert len(version) == 8
    assert set(version) <= set(string.hexdigits)


def test_a_configuration_that_was_sent_has_the_version_of_the_one_that_runs() -> None:
    running = load_config()
    sent = parse_config(json.loads(document_of(running)))
    assert sent == running
    assert config_version(sent) == config_version(running)


def test_another_setting_is_another_version() -> None:
    versions = [
        config_version(parse_config(document))
        for document in (
            {},
            {"endpoints": {"chat": {"ttft_budget_ms": 501}}},
            {"endpoints": {"chat": {}, "report": {}}},
            {"endpoints": {"report": {}, "chat": {}}},
            {"decode": {"itl_factor": None}},
        )
    ]
    assert len(set(versions)) == len(versions)


def test_the_order_of_what_is_not_the_default_does_not_count() -> None:
    one = parse_config({"endpoints": {"chat": {}, "a": {}, "b": {}}})
    other = parse_config({"endpoints": {"chat": {}, "b": {}, "a": {}}})
    assert config_version(one) == config_version(other)


def test_no_password_is_in_it() -> None:
    config = load_config()
    shared = replace(config, directory=replace(config.directory, url="redis://:secret@host"))
    assert config_version(shared) == config_version(config)


@pytest.mark.parametrize(
    "document",
    [
        {"router": {"api_keys": "redis"}, "security": {"secret_file": "/tmp/a"}},
        {"tls": {"redis": {"authority": "/tmp/b"}}},
    ],
)
def test_settings_that_need_what_is_left_out_have_a_version(document) -> None:
    config = parse_config(document | {"directory": {"url": "rediss://host"}})
    other = parse_config(document | {"directory": {"url": "rediss://other"}})
    assert config_version(config) == config_version(other) != config_version(parse_config({}))


def test_the_place_of_the_secret_does_not_count() -> None:
    one, other = ({"security": {"secret_file": path}} for path in ("/tmp/a", "/tmp/b"))
    assert config_version(parse_config(one)) == config_version(parse_config(other))
    assert config_version(parse_config(one)) == config_version(parse_config({}))


def test_a_configuration_with_keys_in_redis_and_tls_to_redis_has_a_version() -> None:
    document = {
        "directory": {"url": "rediss://:secret@host"},
        "router": {"api_keys": "redis"},
        "security": {"secret_file": "/secret"},
        "tls": {"redis": {}},
    }
    moved = document | {"directory": {"url": "rediss://other"}}
    assert config_version(parse_config(document)) == config_version(parse_config(moved))


def test_a_dump_has_the_place_of_the_secret_alone(tmp_path) -> None:
    path = made(tmp_path / "secret")
    file = tmp_path / "tandem.yaml"
    file.write_text(f"security: {{secret_file: {path}}}\n")
    config = load_config(file)
    assert config.to_dict()["security"] == {"secret_file": str(path)}
    assert path.read_text().strip() not in str(config) + str(config.to_dict())
