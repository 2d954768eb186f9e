"""Load clients measure this server without options that only it needs."""

from __future__ import annotations

import json

import pytest

from tests.clients.conftest import DEMO

QUESTIONS = ("What is prefill?", "What is decode?", "What is a KV cache?", "Why two pools?")


def test_guidellm(serving, run, tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in QUESTIONS))
    run(
        "load-clients/bin/guidellm",
        "run",
        "--backend",
        f"kind=openai_http,target={serving.http.removesuffix('/v1')},model=demo",
        "--tokenizer",
        f"kind=hf_auto,model={DEMO}",
        "--data",
        f"kind=json_file,path={questions}",
        "--profile",
        "kind=synchronous",
        "--constraint",
        "kind=max_requests,count=4",
        "--output",
        f"kind=json,path={tmp_path / 'report.json'}",
        "--disable-console",
    )
    (found,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    totals = found["metrics"]["request_totals"]
    assert totals["successful"] == 4
    assert totals["errored"] == totals["incomplete"] == 0
    assert found["metrics"]["time_to_first_token_ms"]["successful"]["count"] == 4


def test_aiperf(serving, run, tmp_path):
    run(
        "load-clients/bin/aiperf",
        "profile",
        "--model",
        "demo",
        "--url",
        serving.http.removesuffix("/v1"),
        "--endpoint-type",
        "chat",
        "--streaming",
        "--tokenizer",
        str(DEMO),
        "--request-count",
        "8",
        "--concurrency",
        "2",
        "--synthetic-input-tokens-mean",
        "64",
        "--output-tokens-mean",
        "16",
        "--output-artifact-dir",
        str(tmp_path / "found"),
        "--ui",
        "none",
    )
    (report,) = (tmp_path / "found").rglob("profile_export_aiperf.json")
    found = json.loads(report.read_text())
    assert found["request_count"]["avg"] == 8
    assert found.get("error_request_count", {}).get("avg", 0) == 0
    assert found["time_to_first_token"]["avg"] > 0


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_vllm_bench(serving, run, tmp_path, backend):
    paths = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
    run(
        "vllm/bin/vllm",
        "bench",
        "serve",
        "--backend",
        backend,
        "--base-url",
        serving.http.removesuffix("/v1"),
        "--endpoint",
        paths[backend],
        "--model",
        "demo",
        "--tokenizer",
        str(DEMO),
        "--dataset-name",
        "random",
        "--random-input-len",
        "64",
        "--random-output-len",
        "16",
        "--num-prompts",
        "8",
        "--request-rate",
        "4",
        "--ignore-eos",
        "--save-result",
        "--result-filename",
        str(tmp_path / "report.json"),
    )
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["completed"] == 8
    assert found["failed"] == 0
    assert found["total_output_tokens"] == 8 * 16
    assert found["mean_ttft_ms"] > 0
