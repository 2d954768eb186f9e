"""A cluster of the tiny model in a process of its own, until its standard input ends.

The first line that it prints has the addresses as JSON; its log goes to standard error.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from cluster.config.endpoints import EndpointConfig
from cluster.config.schema import TandemConfig
from cluster.config.security import SecurityConfig
from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.telemetry.logging_setup import configure_logging
from protos.wire.secret import made
from tests import tiny
from tests.integration.local import OPERATOR_KEY, cluster

# Shows each field of a chat, and fails on some.
_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}<|start|>{{ m.role }}: "
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{{ m.tool_call_id }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|end|>{% endfor %}{{ reasoning_effort }}"
    "{% if custom %}{{ custom.name + '!' }}{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% if enable_thinking %}<think>{% endif %}"
    "{% endif %}"
)


async def _serve(config: TandemConfig) -> None:
    async with cluster(config) as local:
        inside = [replica.address for replica in local.replicas]
        router = local.router
        addresses = {"grpc": router.grpc_address, "http": router.http_address, "inside": inside}
        more = {"secret": config.security.secret_file, "operator_key": OPERATOR_KEY}
        print(json.dumps(addresses | more), flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Serve."""
    torch.set_num_threads(1)
    configure_logging()
    redis = EmbeddedRedis.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            tiny.make(Path(folder))
            tokenizer = tiny.make_tokenizer()
            tokenizer.chat_template = _TEMPLATE
            tokenizer.save_pretrained(folder)
            secret = made(Path(folder, "members", "secret"))
            base = TandemConfig()
            patient = EndpointConfig(ttft_budget_ms=60_000, itl_budget_ms=60_000)
            config = replace(
                base,
                model=replace(base.model, path=folder, name="demo", dtype="float32"),
                kv=replace(base.kv, blocks=800),
                router=replace(base.router, http_port=0, grpc_port=0),
                endpoints={"chat": patient},
                directory=replace(base.directory, url=redis.url),
                security=SecurityConfig(str(secret)),
            )
            asyncio.run(_serve(config))
    finally:
        redis.stop()


if __name__ == "__main__":
    main()
