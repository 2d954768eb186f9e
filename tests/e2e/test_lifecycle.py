"""A running cluster as users and operators meet it: clients, kills, metrics, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import openai
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cluster.api import Tokens
from cluster.chart.metric_catalogue import all_metrics, samples
from cluster.discovery.starting_replicas import bytes_text
from engine.errors import Unavailable
from engine.safetensors_header import read_header
from engine.types.sampling_params import SamplingParams
from tandem_client import Client
from tests.e2e.held import held
from tests.e2e.serving import descendants, serve, stop
from tests.eventually import eventually, wait_until
from tests.exactness import tie_of_a_draw

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]
# Deadlines of events that take seconds on an idle machine.
REJOIN_S, SEEN_S = 120, 60
# What it takes a fault, a cancel, a refusal or a full cache to see.
NOT_BY_ONE_REQUEST = {
    "tandem_refused_connections_total",
    "tandem_refused_total",
    "tandem_front_end_errors_total",
    "tandem_time_to_cancel_seconds",
    "tandem_replicas_lost_total",
    "tandem_failovers_total",
    "tandem_failover_pause_seconds",
    "tandem_prefill_step_failures_total",
    "tandem_decode_step_failures_total",
    "tandem_decode_preemptions_total",
    "tandem_decode_recomputed_tokens_total",
    "tandem_decode_local_prefills_total",
    "tandem_prefix_evictions_total",
    "tandem_prefix_hit_tokens_total",
    "tandem_kv_links_broken_total",
    "tandem_canary_requests_total",
    "tandem_canary_rolled_back",
    "tandem_canary_ttft_seconds",
    "tandem_pool_desired_replicas",
    "tandem_scored_tokens_total",
}
# What the logs say of a request.
TOLD_IN_LOGS = {
    "router": ("request accepted", "request assigned", "first token passed on", "request ended"),
    "prefill": ("prefill waits", "prefill started", "first token sampled", "KV handed over"),
    "decode": ("decode waits", "decode started", "decode ended"),
}
ENDS_IN_LOGS = [messages[-1] for messages in TOLD_IN_LOGS.values()]


@pytest.fixture(scope="module")
def serving(model, model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    # However slow the machine is, nothing is refused for it.
    patient = """
endpoints: {chat: {ttft_budget_ms: 600000, itl_budget_ms: 60000}}
router: {failover_timeout_s: 120}
"""
    (folder / "config.yaml").write_text(patient)
    arguments = ("--model", str(model_folder), "--dtype", "float32")
    with serve(
        *arguments, "--config", str(folder / "config.yaml"), folder=folder, level="info"
    ) as running:
        yield running


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def replica(serving, role):
    return next(entry for entry in serving.replicas() if entry["role"] == role)


def healthz(serving):
    return get(serving.http.removesuffix("/v1") + "/healthz")


def is_missing(serving, role):
    status, text = healthz(serving)
    return status == 503 and role in text


async def until(condition, timeout_s):
    return await eventually(lambda: asyncio.to_thread(condition), timeout_s, poll_s=0.1)


def test_it_says_what_it_did(serving):
    log = serving.log.read_text()
    for stage in ("ray", "prefill 1/1", "decode 1/1", "router 1/1", "Ray dashboard"):
        assert stage in log
    assert "the first after" in log


def test_a_pipe_gets_the_bytes_of_the_weights_of_each_replica(serving, model_folder):
    path = model_folder / "model.safetensors"
    with path.open("rb") as file:
        size = path.stat().st_size - read_header(file, path)[2]
    log = serving.log.read_text()
    weights = re.escape(f"weights, {bytes_text(size)} in ")
    for pool in ("prefill", "decode"):
        assert re.search(rf"^ +[\d.]+ s  {pool}#\w+: {weights}[\d.]+ s$", log, re.MULTILINE)
        # The log of the replica, too.
        assert re.search(rf"starting: {weights}[\d.]+ s replica={pool}#", log)


def idle(serving):
    """The replicas where none holds anything, or nothing.

    What the next status says may be older: of a replica whose reports are late it is what the
    directory has.
    """
    replicas = serving.replicas()
    pools = [entry for entry in replicas if entry["role"] != "router"]
    busy = any(e["running"] or e["waiting"] or e["blocks"]["used"] for e in pools)
    return None if busy else replicas


async def test_status_names_every_replica_and_its_blocks(serving):
    replicas = {entry["role"]: entry for entry in await until(lambda: idle(serving), SEEN_S)}
    assert set(replicas) == {"router", "prefill", "decode"}
    for role in ("prefill", "decode"):
        entry = replicas[role]
        assert entry["id"].startswith(role)
        blocks = entry["blocks"]
        assert blocks["total"] > 0
        assert blocks["leased"] == blocks["orphaned"] == 0


def test_another_user_of_the_host_operates_nothing(serving, tmp_path, monkeypatch):
    wait_until(lambda: serving.tandem("status").returncode == 0)
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in (("status",), ("stop",), ("role", "decode#x", "both"), ("rollout",)):
        done = serving.tandem(*command)
        assert done.returncode == 2
        assert "an operator's key is needed" in done.stderr


def test_openai_client_and_curl(serving):
    client = openai.OpenAI(base_url=serving.http, api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"]
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=8,
        seed=1,
        extra_body={"ignore_eos": True},
    )
    usage = [chunk.usage for chunk in stream if chunk.usage]
    assert [u.completion_tokens for u in usage] == [8]
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nope", prompt="x")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="tiny", prompt="x", temperature=-1)
    body = json.dumps({"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True})
    command = ["curl", "-sS", f"{serving.http}/completions", "-H", "Content-Type: application/json"]
    answer = subprocess.run([*command, "-d", body], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["usage"]["completion_tokens"] == 4


def test_generate_and_chat_commands(serving):
    for command in (["generate", "hello"], ["chat", "hello"]):
        done = serving.tandem(*command, "--max-tokens", "5", "--seed", "1")
        assert done.returncode == 0, done.stderr
    wrong = serving.tandem("generate", "hello", "--temperature", "-1")
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "temperature" in wrong.stderr


async def test_a_client_that_goes_away_leaves_nothing(serving):
    async with Client(serving.grpc) as client:
        events = client.generate([1] * 500, max_tokens=1000, ignore_eos=True)
        async for event in events:
            if isinstance(event, Tokens) and event.index > 3:
                break
        await events.aclose()
    await until(lambda: idle(serving), SEEN_S)


async def test_metrics_stand_in_prometheus_and_in_ray(serving):
    async with Client(serving.grpc) as client:
        await client.complete("hello", max_tokens=4)
        await client.complete([1] * 1500, max_tokens=4, ignore_eos=True)
    status, text = await asyncio.to_thread(get, serving.http.removesuffix("/v1") + "/metrics")
    assert status == 200
    assert "tandem_ttft_seconds_count" in text
    wanted = {
        f"ray_{name}": set(labels)
        for metric in all_metrics()
        if metric.name not in NOT_BY_ONE_REQUEST
        for name, labels in samples(metric).items()
    }

    def exported():
        # Ray writes into its session folder where Prometheus is to scrape.
        targets = json.loads(
            (_session(serving) / "prom_metrics_service_discovery.json").read_text()
        )
        hosts = [host for target in targets for host in target["targets"]]
        page = "".join(get(f"http://{host}/metrics")[1] for host in hosts)
        found = {
            sample.name: set(sample.labels)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }
        lacking.clear()
        lacking.update(
            name for name, labels in wanted.items() if not labels <= found.get(name, {"none"})
        )
        return not lacking and 'role="prefill"' in page

    lacking: set[str] = set()
    try:
        await until(exported, 2 * SEEN_S)
    except TimeoutError:
        raise AssertionError(f"Ray exports no {', '.join(sorted(lacking))}") from None


def test_the_dashboard_lies_where_ray_s_grafana_looks(serving):
    folder = _session(serving) / "metrics" / "grafana" / "dashboards"
    dashboards = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    assert "tandem" in {dashboard["uid"] for dashboard in dashboards}
    assert len(dashboards) > 1  # Ray's own
    # The file by which that Grafana is told where to look.
    provisioning = folder.parent / "provisioning" / "dashboards" / "default.yml"
    (provider,) = yaml.safe_load(provisioning.read_text())["providers"]
    assert provider["type"] == "file"
    assert Path(provider["options"]["path"]).samefile(folder)


async def test_a_request_is_followed_by_its_id_through_ray_s_logs(serving):
    """As docs/howto/watch-status-logs-metrics.md says, over the files of Ray's dashboard."""
    async with Client(serving.grpc) as client:
        prompt = [1] * 1500
        await client.complete(prompt, max_tokens=4, ignore_eos=True, request_id="followed")
    logs = _session(serving) / "logs"

    def lines():
        files = logs.glob("worker-*.err")
        found = [line for file in files for line in file.read_text(errors="replace").splitlines()]
        return sorted(line for line in found if "request_id=followed" in line)

    # Each process writes in its own time.
    await until(lambda: all(ended in "".join(lines()) for ended in ENDS_IN_LOGS), SEEN_S)
    told = {
        role: [line for line in lines() if f" replica={role}#" in line] for role in TOLD_IN_LOGS
    }

    def is_kept(role):
        """Whether Serve's own file, which the replica's page of Ray's dashboard shows, has them."""
        files = (logs / "serve").glob(f"replica_tandem_{role}_*.log")
        kept = "".join(file.read_text(errors="replace") for file in files)
        return all(line in kept for line in told[role])

    for role, expected in TOLD_IN_LOGS.items():
        await until(lambda role=role: is_kept(role), SEEN_S)
        assert len(told[role]) == len(expected), told[role]
        for message in expected:
            assert sum(f" {message} " in line for line in told[role]) == 1, (message, told[role])


@pytest.mark.parametrize("role", ["decode", "prefill"])
async def test_a_killed_replica_is_replaced_and_its_stream_goes_on(serving, role):
    before = replica(serving, role)
    async with Client(serving.grpc) as client:
        prompt = [1] * (50 if role == "decode" else 1500)
        options = {"max_tokens": 500, "temperature": 0, "ignore_eos": True, "timeout_s": 120}
        events, got = client.generate(prompt, **options), []
        await anext(events)
        if role == "decode":
            while len(got) < 3:
                take(await anext(events), got)
        os.kill(serving.pid_of(before["address"]), signal.SIGKILL)
        await until(lambda: is_missing(serving, role), SEEN_S)
        await until(lambda: healthz(serving)[0] == 200, REJOIN_S)
        assert replica(serving, role)["id"] != before["id"]
        async for event in events:
            take(event, got)
        again = await client.complete(prompt, **options)
        assert got == [token.token for token in again.choices[0].tokens]


async def test_a_killed_router_is_replaced_on_the_same_ports(serving):
    before = replica(serving, "router")
    body = {"model": "tiny", "prompt": [1] * 50, "max_tokens": 900, "ignore_eos": True}
    async with Client(serving.grpc) as client, httpx.AsyncClient() as http:
        url, streamed = f"{serving.http}/completions", body | {"stream": True}
        with held(serving):  # else the streams may end before their router does
            events = client.generate([1] * 50, max_tokens=900, ignore_eos=True)
            await anext(events)
            async with http.stream("POST", url, json=streamed, timeout=60) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                os.kill(serving.pid_of(serving.grpc), signal.SIGKILL)
                with pytest.raises(Unavailable, match="connection to the router broke") as broken:
                    await collected(events)
                with pytest.raises(httpx.TransportError):
                    await collected(lines)
        assert broken.value.retryable
        await until(lambda: replaced(serving, before), REJOIN_S)
        again = await http.post(url, json=body, timeout=60)
        assert again.json()["usage"]["completion_tokens"] == 900
    async with Client(serving.grpc) as client:
        again = await client.complete([1] * 50, max_tokens=900, ignore_eos=True)
        assert again.summary.completion_tokens == 900
    # Nothing is left of the streams that broke.
    await until(lambda: idle(serving), SEEN_S)


async def test_the_only_router_serves_after_sigterm_until_another_one_does(serving):
    before = replica(serving, "router")
    os.kill(serving.pid_of(serving.grpc), signal.SIGTERM)
    async with Client(serving.grpc) as client, asyncio.timeout(REJOIN_S):
        while not await asyncio.to_thread(replaced, serving, before):
            answer = await client.complete([1] * 50, max_tokens=4, ignore_eos=True)
            assert answer.summary.completion_tokens == 4


async def test_a_resumable_stream_goes_on_on_the_next_router(serving, model):
    before = replica(serving, "router")
    options = {"max_tokens": 900, "ignore_eos": True, "temperature": 0.8, "seed": 3}
    async with Client(serving.grpc) as client:
        whole = await client.complete([1] * 50, **options)
        got, router = [], serving.pid_of(serving.grpc)
        async for event in client.generate([1] * 50, resumable=True, **options):
            if isinstance(event, Tokens) and not got:
                os.kill(router, signal.SIGKILL)
            take(event, got)
    want = [token.token for token in whole.choices[0].tokens]
    sampling = SamplingParams(temperature=0.8, seed=3)
    assert got == want or tie_of_a_draw(model, (1,) * 50, want, sampling, got), (got, want)
    assert len(got) == 900
    await until(lambda: replaced(serving, before), REJOIN_S)
    await until(lambda: idle(serving), SEEN_S)


async def collected(stream):
    return [one async for one in stream]


def replaced(serving, router):
    """Whether another router serves on its ports."""
    try:
        return healthz(serving)[0] == 200 and replica(serving, "router")["id"] != router["id"]
    except (OSError, json.JSONDecodeError):
        return False


def take(event, got):
    """Add an event's tokens to those that came before."""
    if isinstance(event, Tokens):
        assert event.index == len(got)
        got += event.ids


async def test_redis_can_die_without_a_stream_noticing(serving):
    pids = [pid for pid in descendants(serving.process.pid) if "redis-server" in _command(pid)]
    assert len(pids) == 1
    async with Client(serving.grpc) as client:
        events = client.generate("x", max_tokens=900, ignore_eos=True)
        seen = 0
        async for event in events:
            if isinstance(event, Tokens):
                if seen == 0:
                    os.kill(pids[0], signal.SIGKILL)
                seen += len(event.tokens)
        assert seen == 900
        again = await client.complete("hello", max_tokens=8, ignore_eos=True)
        assert again.summary.completion_tokens == 8
    await until(lambda: serving.tandem("status").returncode == 0, SEEN_S)


def test_ctrl_c_leaves_no_process(serving):
    """The last test of this file: it ends what the others used."""
    below = descendants(serving.process.pid)
    assert len(below) > 5
    stop(serving.process)
    assert serving.process.returncode == 0
    left = {pid: _command(pid) for pid in below if _command(pid)}
    assert not left


def _session(serving) -> Path:
    """The session folder of this cluster's Ray, as its processes were told."""
    for pid in descendants(serving.process.pid):
        if found := re.search(r"session[_-]dir[= ](\S+)", _command(pid)):
            return Path(found.group(1))
    raise AssertionError("no Ray process names its session folder")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
