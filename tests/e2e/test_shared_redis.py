"""`tandem serve` with a Redis of its operator: TLS, API keys in it, and the cluster's secret."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack

import httpx
import pytest

from cluster.deploy.embedded_redis import EmbeddedRedis
from tests.certificates import Certificates
from tests.cluster.discovery.tls_proxy import proxied
from tests.e2e.serving import serve
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
CONFIG = """\
directory: {{url: "{url}"}}
router: {{api_keys: redis}}
security: {{secret_file: {secret}}}
tls: {{redis: {{authority: {authority}, certificate: {shown.certificate}, key: {shown.key}}}}}
"""
QUESTION = {"model": "tiny", "prompt": "a", "max_tokens": 1}


def tandem(*arguments: str) -> str:
    command = [sys.executable, "-m", "cluster.cli.main", *arguments]
    return subprocess.check_output(command, text=True, timeout=60).strip()


async def test_keys_in_a_redis_with_tls_open_the_cluster(model, model_folder, tmp_path):
    redis, own = EmbeddedRedis.start(), Certificates(tmp_path)
    secret, config = tmp_path / "secret", tmp_path / "tandem.yaml"
    try:
        async with proxied(redis, own) as (_, url):
            tls = {"authority": own.authority, "shown": own.issue()}
            config.write_text(CONFIG.format(url=url, secret=secret, **tls))
            await asyncio.to_thread(tandem, "secret", str(secret))
            first = await asyncio.to_thread(tandem, "keys", "add", "a", "--config", str(config))
            stack = ExitStack()
            start = ("--model", str(model_folder), "--dtype", "float32", "--config", str(config))
            opening = serve(*start, folder=tmp_path)
            serving = await asyncio.to_thread(stack.enter_context, opening)
            try:
                async with httpx.AsyncClient(base_url=serving.http, timeout=60) as client:

                    async def status(key: str) -> int:
                        head = {"Authorization": f"Bearer {key}"}
                        found = await client.post("/completions", json=QUESTION, headers=head)
                        return found.status_code

                    assert (await status("foreign"), await status(first)) == (401, 200)
                    add = ("keys", "add", "b", "--config", str(config))
                    second = await asyncio.to_thread(tandem, *add)

                    async def opens() -> bool:
                        return await status(second) == 200

                    await eventually(opens)
            finally:
                await asyncio.to_thread(stack.close)
    finally:
        redis.stop()
