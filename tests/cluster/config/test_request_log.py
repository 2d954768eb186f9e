"""The sections `request_log` and `tracing`."""

import pytest

from cluster.config.schema import parse_config
from engine.errors import ConfigError


@pytest.mark.parametrize(
    "right", ["http://otel:4317", "https://a.b-c.example:1", "http://[::1]:65535"]
)
def test_a_collector_is_named_by_host_and_port(right):
    assert parse_config({"tracing": {"otlp": right}}).tracing.otlp == right


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "otel:4317", "ftp://otel:4317", "http://otel", "http://otel:0", "http://otel:65536"),
        *("http://otel:4317/v1", "http://user:key@otel:4317", "http://otel?key=secret:4317"),
        *("http://a:b:4317", "http://[::1:4317", "http://otel:4317\n", "http://otel\x1b[31m:1"),
    ],
)
def test_another_url_is_refused_without_being_shown(wrong):
    with pytest.raises(ConfigError, match="otlp must be http://HOST:PORT") as refused:
        parse_config({"tracing": {"otlp": wrong}})
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("wrong", [0, 63, 1_000_001, 10**30])
def test_spans_that_wait_are_bounded(wrong):
    with pytest.raises(ConfigError, match="buffered_spans"):
        parse_config({"tracing": {"buffered_spans": wrong}})
