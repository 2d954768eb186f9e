"""The configuration: the precedence of its sources, and the messages of its faults."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import yaml

from cluster.config.endpoints import EndpointConfig
from cluster.config.schema import TandemConfig, load_config, parse_config
from engine.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "tandem.yaml"
    path.write_text(text)
    return path


def refusal(document: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(document, source="t.yaml")
    return caught.value.message


def test_nothing_given_means_the_defaults() -> None:
    config = load_config()
    assert config.endpoints["chat"] == EndpointConfig()
    lanes = {name: endpoint.lane for name, endpoint in config.endpoints.items()}
    assert lanes == {"chat": "interactive", "score": "scoring", "batch": "batch"}
    assert config.default_endpoint == "chat"
    assert config.router.max_message_bytes == 4 * 1024 * 1024
    assert config.directory.url is None


def test_a_flag_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    path = write(tmp_path, "router: {http_port: 1, grpc_port: 2}\nkv:\nprefill: {replicas: 3}\n")
    config = load_config(path, {"router.http_port": 9, "model.dtype": "float32"})
    assert (config.router.http_port, config.router.grpc_port) == (9, 2)
    assert config.prefill.replicas == 3
    assert config.model.dtype == "float32"
    assert config.kv.block_size == 16


def test_without_prefill_replicas_the_others_do_both() -> None:
    assert load_config().decode_role == "decode"
    assert load_config(None, {"prefill.replicas": 0}).decode_role == "both"
    assert refusal({"prefill": {"replicas": -1}}).endswith("replicas must not be negative")


def test_the_first_endpoint_is_the_default_one() -> None:
    config = parse_config({"endpoints": {"zeta": {}, "alpha": {"ttft_budget_ms": 5}}})
    assert config.default_endpoint == "zeta"
    assert config.endpoints["alpha"].ttft_budget_ms == 5.0


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {"kv": {"block_siz": 8}},
            "t.yaml: kv.block_siz: unknown key; did you mean kv.block_size?",
        ),
        ({"rooter": {}}, "t.yaml: rooter: unknown key; did you mean router?"),
        (
            {"kv": {"max_batch": 8}},
            "t.yaml: kv.max_batch: unknown key; did you mean decode.max_batch?",
        ),
        (
            {"endpoints": {"a": {"ttft_budget": 1}}},
            "t.yaml: endpoints.a.ttft_budget: unknown key; "
            "did you mean endpoints.a.ttft_budget_ms?",
        ),
        ({"qqqq": 1}, "t.yaml: qqqq: unknown key"),
        (
            {"tls": {"front_ends": {"cert": "c", "key": "k", "certificate": "c"}}},
            "t.yaml: tls.front_ends.cert: unknown key; did you mean tls.front_ends.certificate?",
        ),
        (
            {"tls": {"front_ends": {"certificate": "c"}}},
            "t.yaml: tls.front_ends.key: this key is missing",
        ),
        ({"tls": {"redis": {"ca": "c"}}}, "t.yaml: tls.redis.ca: unknown key"),
        (
            {"scaling": {"decode": {"mx": 3}}},
            "t.yaml: scaling.decode.mx: unknown key; did you mean scaling.decode.max?",
        ),
        (
            {"endpoints": {"a": {"canary": {"endpoint": "chat", "guard": {"error_rat": 1.0}}}}},
            "t.yaml: endpoints.a.canary.guard.error_rat: unknown key; "
            "did you mean endpoints.a.canary.guard.error_rate?",
        ),
        (
            {"ray": {"shares": {"rooter": {}}}},
            "t.yaml: ray.shares.rooter: unknown key; did you mean ray.shares.router?",
        ),
        (
            {"ray": {"shares": {"decode": {"gpus": 2.0}}}},
            "t.yaml: ray.shares.decode.gpus must be at most 1: a replica computes on one GPU",
        ),
        (
            {"ray": {"shares": {"decode": {"gpu": 1.0}}}},
            "t.yaml: ray.shares.decode.gpu: unknown key; did you mean ray.shares.decode.gpus?",
        ),
        (
            {"prefill": {"replicas": True}},
            "t.yaml: prefill.replicas: expected an integer, not True",
        ),
        ({"kv": {"blocks": "12"}}, "t.yaml: kv.blocks: expected an integer, not '12'"),
        ({"kv": {"lease_s": "x"}}, "t.yaml: kv.lease_s: expected a number, not 'x'"),
        ({"kv": 3}, "t.yaml: kv: expected a mapping, not 3"),
        ({"kv": {"warm_prefixes": [""]}}, "t.yaml: kv.warm_prefixes must not hold an empty text"),
        (
            {"kv": {"prefix_cache": False, "warm_prefixes": ["a"]}},
            "t.yaml: kv.warm_prefixes need prefix_cache: true",
        ),
        ({"decode": {"max_batch": 0}}, "t.yaml: decode.max_batch must be at least 1"),
        (
            {"decode": {"max_batch": "many"}},
            "t.yaml: decode.max_batch: expected an integer or 'auto', not 'many'",
        ),
        (
            {"decode": {"itl_factor": True}},
            "t.yaml: decode.itl_factor: expected a number or 'auto', not True",
        ),
        ({"prefill": {"chunk_tokens": 0}}, "t.yaml: prefill.chunk_tokens must be at least 1"),
        ({"endpoints": {}}, "t.yaml: endpoints must name at least one endpoint"),
        (
            {"model": {"dtype": "int8"}},
            "t.yaml: model.dtype: expected 'auto', 'float32', 'bfloat16' or 'float16', not 'int8'",
        ),
    ],
)
def test_a_fault_is_one_clear_line(document: dict[str, object], expected: str) -> None:
    assert refusal(document) == expected


def test_each_fault_has_its_own_line() -> None:
    lines = refusal({"kv": {"blocks": "x"}, "prefill": {"replicas": "y"}}).splitlines()
    assert len(lines) == 2


def test_not_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kv\.lease_s: expected a finite number"):
        load_config(write(tmp_path, "kv: {lease_s: .inf}"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kv:\n  block_size: [1,\n", "line 3, column 1"),
        ("kv: {blocks: 1}\nkv: {blocks: 2}\n", "line 2, column 1: the key 'kv' is given twice"),
        ("- a\n", "expected a mapping, not list"),
        ("kv: \x00", "broken YAML"),
    ],
)
def test_broken_yaml_says_where(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert expected in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(tmp_path / "b.yaml")


def test_an_override_into_a_section_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kv: expected a mapping, not 3"):
        load_config(write(tmp_path, "kv: 3"), {"kv.blocks": 4})


def test_demo_is_the_bundled_folder_unless_there_is_a_local_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config().model.path.endswith("models/demo")
    assert Path(load_config().model.path).is_absolute()
    (tmp_path / "demo").mkdir()
    assert load_config().model.path == str(tmp_path / "demo")
    assert load_config(None, {"model.path": "./x"}).model.path == str(tmp_path / "x")
    assert load_config(None, {"model.path": "owner/model"}).model.path == "owner/model"
    (tmp_path / "owner" / "model").mkdir(parents=True)
    assert load_config(None, {"model.path": "owner/model"}).model.path == str(
        tmp_path / "owner/model"
    )


def test_it_travels_and_dumps(tmp_path: Path) -> None:
    config = load_config(None, {"prefill.replicas": 2})
    assert pickle.loads(pickle.dumps(config)) == config
    assert load_config(write(tmp_path, yaml.safe_dump(config.to_dict()))) == config
    assert isinstance(config, TandemConfig)


def test_the_file_of_keys_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(overrides={"router.api_keys": "keys.yaml"})
    assert config.router.api_keys == str(tmp_path / "keys.yaml")


def test_tenants_and_lanes_are_checked():
    config = parse_config(
        {"tenants": {"acme": {"weight": 2.0}}, "endpoints": {"report": {"lane": "batch"}}}
    )
    assert config.tenants["acme"].weight == 2.0 and config.endpoints["report"].lane == "batch"
    for wrong in ({"tenants": {"a": {"weight": 0.0}}}, {"endpoints": {"a": {"lane": "slow"}}}):
        with pytest.raises(ConfigError):
            parse_config(wrong)


@pytest.mark.parametrize("batching", ["static", "window"])
def test_a_request_that_waits_for_a_batch_is_promised_no_first_token(batching):
    document = {"endpoints": {"chat": {"ttft_budget_ms": 200.0}}, "decode": {"batching": batching}}
    config = parse_config(document)
    patient_ms = 1000 * config.router.request_timeout_s
    assert config.promised_endpoints["chat"].ttft_budget_ms == patient_ms
    assert config.local_prefill_tokens == 0
    usual = parse_config({**document, "decode": {}})
    assert usual.promised_endpoints == usual.endpoints
    assert usual.local_prefill_tokens == usual.prefill.local_prefill_tokens


def test_an_endpoint_may_have_a_batch_window_of_its_own():
    endpoints = {"chat": {"batch_window_ms": 20.0}, "report": {}}
    config = parse_config({"endpoints": endpoints, "decode": {"batching": "window"}})
    found = {name: one.batch_window_s for name, one in config.promised_endpoints.items()}
    assert found == {"chat": 0.02, "report": None}
    with pytest.raises(ConfigError, match="batch_window_ms must be positive"):
        parse_config({"endpoints": {"chat": {"batch_window_ms": 0.0}}})


def test_a_batching_mode_that_does_not_exist_is_refused():
    for wrong in ({"batching": "dynamic"}, {"window_ms": 0.0}):
        with pytest.raises(ConfigError):
            parse_config({"decode": wrong})
