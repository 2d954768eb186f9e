"""The answer that `tandem serve` shows when it is up."""

from __future__ import annotations

import os
from typing import TextIO

from cluster.api import ChatMessage
from cluster.client.terminal import stream_answer, timing
from cluster.deploy.reserved_ports import router_command
from cluster.deploy.startup_progress import StartupProgress
from engine.errors import InvalidRequest, TandemError, Unauthenticated
from tandem_client.router_address import RouterAddress

DEMO_QUESTION = "What is Tandem?"
_DEMO_TOKENS = 128


async def answer_demo(router: RouterAddress, out: TextIO, progress: StartupProgress) -> None:
    """Answer one question on the terminal; a model that cannot chat continues the text.

    Where the router wants an API key and there is none, say how to ask with a key.
    """
    from tandem_client import Client

    key = os.environ.get("TANDEM_API_KEY")
    progress.say(f"\n> {DEMO_QUESTION}")
    async with Client(router, api_key=key) as client:
        prompts = ([ChatMessage("user", DEMO_QUESTION)], DEMO_QUESTION)
        for prompt in prompts:
            try:
                events = client.generate(prompt, max_tokens=_DEMO_TOKENS, temperature=0.0)
                _, summary = await stream_answer(events, out)
            except TandemError as error:
                if isinstance(error, InvalidRequest) and prompt is not prompts[-1]:
                    continue
                if isinstance(error, Unauthenticated) and not key:
                    ask = router_command(f'generate "{DEMO_QUESTION}"', str(router))
                    progress.say(f"(ask with an API key: TANDEM_API_KEY=KEY {ask})")
                else:
                    progress.say(f"(no answer: {error.message})")
                return
            except OSError:
                return  # nobody reads the terminal any more, and the cluster serves
            progress.say(f"({timing(summary)})")
            return
