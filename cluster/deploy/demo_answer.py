"""The answer that `tandem serve` shows when it is up."""

from __future__ import annotations

import os
from typing import TextIO

from cluster.api import ChatMessage
from cluster.client.router_address import RouterAddress
from cluster.client.terminal import stream_answer, timing
from cluster.deploy.startup_progress import StartupProgress
from engine.errors import InvalidRequest, TandemError

DEMO_QUESTION = "What is Tandem?"
_DEMO_TOKENS = 128


async def answer_demo(router: RouterAddress, out: TextIO, progress: StartupProgress) -> None:
    """Answer one question on the terminal; a model that cannot chat continues the text."""
    from cluster.client import Client

    progress.say(f"\n> {DEMO_QUESTION}")
    async with Client(router, api_key=os.environ.get("TANDEM_API_KEY")) as client:
        prompts = ([ChatMessage("user", DEMO_QUESTION)], DEMO_QUESTION)
        for prompt in prompts:
            try:
                _, summary = await stream_answer(
                    client, prompt, out, max_tokens=_DEMO_TOKENS, temperature=0.0
                )
            except TandemError as error:
                if isinstance(error, InvalidRequest) and prompt is not prompts[-1]:
                    continue
                progress.say(f"(no answer: {error.message})")
                return
            progress.say(f"({timing(summary)})")
            return
