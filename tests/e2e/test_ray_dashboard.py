"""What Ray's dashboard shows of a cluster, read back through its API."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.e2e.serving import serve
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
TOKEN = Path.home() / ".ray" / "auth_token"


async def test_deployments_replicas_and_their_logs_read_well(model, model_folder, tmp_path):
    arguments = ("--model", str(model_folder), "--dtype", "float32")
    with serve(*arguments, folder=tmp_path, level="info") as serving:
        headers = {"authorization": f"Bearer {TOKEN.read_text().strip()}"}
        async with httpx.AsyncClient(base_url=serving.dashboard, headers=headers) as client:
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

                await eventually(told, 20)
