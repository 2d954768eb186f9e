"""Ray's dashboard, and the queries of board, alerts and drills, over a real cluster.

The dashboard is read back through its API. The queries are asked of a real Prometheus.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cluster.api import Tokens
from cluster.chart.dashboard import dashboard
from cluster.chart.metric_catalogue import (
    RAY_PREFIX,
    SOURCES,
    all_metrics,
    exact_sum,
    ray_samples,
)
from cluster.telemetry.router_metrics import ARRIVAL_LAG
from engine.errors import NotFound
from tandem_client import Client
from tests.e2e.prometheus import Prometheus, needs_prometheus, prometheus
from tests.e2e.serving import Serving, serve
from tests.eventually import eventually
from tests.helm import queries
from tests.helm.chart import CHART

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]
TOKEN = Path.home() / ".ray" / "auth_token"
PAGE = CHART.parents[1] / "docs" / "howto" / "grafana-and-alerts.md"
# Metrics that plain traffic leaves without a value, each with what it takes.
WITHOUT = {
    "tandem_refused_total": "too much load",
    "tandem_failovers_total": "a lost replica",
    "tandem_failover_pause_seconds": "a lost replica",
    "tandem_replicas_lost_total": "a lost replica",
    "tandem_streams_resumed_total": "a client that comes back",
    "tandem_streams_taken_over_total": "a lost router",
    "tandem_canary_requests_total": "a canary",
    "tandem_canary_ttft_seconds": "a canary",
    "tandem_canary_rolled_back": "a canary that is bad",
    "tandem_pool_desired_replicas": "a pool that scales",
    "tandem_refused_connections_total": "a stranger, or too many connections",
    "tandem_prefill_step_failures_total": "a fault of the engine",
    "tandem_decode_step_failures_total": "a fault of the engine",
    "tandem_decode_preemptions_total": "too few KV blocks",
    "tandem_decode_recomputed_tokens_total": "too few KV blocks, or a lost replica",
    "tandem_decode_local_prefills_total": "a prefill pool that is busy",
    "tandem_prefix_evictions_total": "a full cache",
    "tandem_kv_links_broken_total": "a lost replica",
    "tandem_request_log_lost_total": "a full disk",
}
# No request failed.
WITHOUT_SIDE = "TandemFailing-0"
NEVER = {
    series for metric in all_metrics() if metric.name in WITHOUT for series in ray_samples(metric)
}
CONFIG = """
endpoints:
  chat: {ttft_budget_ms: 600000, itl_budget_ms: 60000}
  report: {lane: batch, ttft_budget_ms: 600000, itl_budget_ms: 60000}
"""


@pytest.fixture(scope="module")
def serving(model, model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dashboards")
    (folder / "config.yaml").write_text(CONFIG)
    arguments = ("--model", str(model_folder), "--dtype", "float32")
    config = ("--config", str(folder / "config.yaml"))
    with serve(*arguments, *config, folder=folder, level="info") as running:
        yield running


async def test_deployments_replicas_and_their_logs_read_well(serving):
    headers = {"authorization": f"Bearer {TOKEN.read_text().strip()}"}
    async with httpx.AsyncClient(base_url=serving.dashboard, headers=headers, timeout=60) as client:
        body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4}
        asked = await client.post(f"{serving.http}/completions", json=body, timeout=60)
        assert asked.status_code == 200
        shown = (await client.get("/api/serve/applications/")).raise_for_status().json()
        deployments = shown["applications"]["tandem"]["deployments"]
        assert deployments.keys() == {"router", "prefill", "decode"}
        for role, said in (
            ("router", "request ended"),
            ("prefill", "first token sampled"),
            ("decode", "decode ended"),
        ):
            (replica,) = deployments[role]["replicas"]
            assert replica["state"] == "RUNNING"
            name = replica["log_file_path"].lstrip("/")
            asks = {"node_id": replica["node_id"], "filename": name, "lines": 1000}

            async def told(asks=asks, said=said):
                answer = await client.get("/api/v0/logs/file", params=asks)
                return answer.status_code == 200 and said in answer.text

            await eventually(told, 60, 0.2)


@needs_prometheus
async def test_each_query_finds_what_it_asks_for(serving, tmp_path):
    with prometheus(as_the_page_says(serving), tmp_path) as server:
        board = json.loads(
            (
                serving.session() / "metrics/grafana/dashboards/tandem_grafana_dashboard.json"
            ).read_text()
        )
        assert board == dashboard()
        asked = dict(questions(board))
        found_by_nobody = {one for one, text in asked.items() if queries.metrics_of(text) & NEVER}
        lacking = asked.keys() - found_by_nobody - {WITHOUT_SIDE}
        async with Client(serving.grpc) as client:

            async def found():
                await traffic(client)
                lacking.difference_update({one for one in lacking if server.query(asked[one])})
                return not lacking

            with suppress(TimeoutError):
                await eventually(found, 200, 1)
            assert not lacking
        for text in asked.values():
            server.query(text)
        check_choices_and_legends(server, board)
        check_alerts(server)
        await check_that_both_pages_say_the_same(server)


def as_the_page_says(serving: Serving) -> dict[str, Any]:
    """The configuration of docs/howto, more often; also the router's own page, as the chart's
    ServiceMonitor reads it."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    block = block.replace("/tmp/tandem-UID/ray/session_latest", str(serving.session()))
    config: dict[str, Any] = yaml.safe_load(block)
    # A page may take more than a second on a busy machine.
    config["global"] = {"scrape_interval": "4s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(CHART.parents[1] / file) for file in config["rule_files"]]
    router = serving.http.removeprefix("http://").removesuffix("/v1")
    own = {"job_name": "router", "static_configs": [{"targets": [router]}]}
    config["scrape_configs"].append(own)
    return config


def questions(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Where it stands, and every expression that a person or a rule may ask."""
    yield from queries.of_panels(board)
    for where, text in (*queries.of_alerts(), *queries.of_drills()):
        for number, side in enumerate(queries.compared(text) or [text]):
            yield f"{where}-{number}", side


async def traffic(client: Client) -> None:
    """Answers beside each other in both lanes, a score, a request that is given up, an error."""
    prompts = [[7] * 100, [7] * 100 + [9] * 300, [5] * 1500, [6] * 60]
    await asyncio.gather(
        *(client.complete(prompt, max_tokens=30, ignore_eos=True) for prompt in prompts),
        client.complete("hello", max_tokens=8, endpoint="report"),
        client.score([[*range(5, 40)]]),
    )
    events = client.generate([8] * 100, max_tokens=900, ignore_eos=True)
    async for event in events:
        if isinstance(event, Tokens):
            break
    await events.aclose()
    with suppress(NotFound):
        await client.complete("hello", max_tokens=1, endpoint="nonsense")


def check_choices_and_legends(server: Prometheus, board: dict[str, Any]) -> None:
    """What can be chosen above the panels selects series, which have the labels of the legends."""
    for variable in board["templating"]["list"][1:]:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
        values = server.ask(f"label/{label}/values", **{"match[]": metric})
        assert values
        assert server.query(f'{metric}{{{label}=~"{"|".join(values)}"}}')
    for _, text in queries.of_panels(board, "chat|default"):
        assert server.query(text) or queries.metrics_of(text) & NEVER, text
    asked = dict(queries.of_panels(board))
    for panel in board["panels"]:
        for target in panel["targets"]:
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            for result in server.query(asked[f"{panel['title']}-{target['refId']}"]):
                assert result.labels.keys() == legend, panel["title"]


def check_alerts(server: Prometheus) -> None:
    """Prometheus has every rule, evaluates it, and none fires."""
    (group,) = server.ask("rules")["groups"]
    assert [rule["name"] for rule in group["rules"]] == [*queries.RULES]
    for rule in group["rules"]:
        assert (rule["health"], rule["state"] == "firing") == ("ok", False), rule


async def check_that_both_pages_say_the_same(server: Prometheus) -> None:
    """Once the traffic has ended, a router's own page and Ray's have the same counts and sums."""
    pairs = {}
    for metric in (one for source in SOURCES[:1] for one in source.metrics()):
        if metric is ARRIVAL_LAG:  # its probes go on
            continue
        if metric.kind == "counter":
            pairs[metric.name] = RAY_PREFIX + metric.name
        if metric.kind == "histogram":
            pairs[f"{metric.name}_count"] = f"{RAY_PREFIX}{metric.name}_count"
            pairs[f"{metric.name}_sum"] = exact_sum(metric)

    def differ() -> dict[str, tuple[float, float]]:
        found = {own: (server.total(own), server.total(ray)) for own, ray in pairs.items()}
        return {own: two for own, two in found.items() if two[0] != pytest.approx(two[1])}

    with suppress(TimeoutError):
        await eventually(lambda: not differ(), 90, 1)
    assert not differ()
