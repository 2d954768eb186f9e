"""A scripted generator whose requests go through a real preprocessor first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from cluster.api import ChatPrompt, Event, GenerateRequest, ModelCard
from cluster.config.endpoints import EndpointConfig
from cluster.router.preprocessor import Preprocessor
from engine.text.tokenizer import Tokenizer
from tests.cluster.scripted_generator import ScriptedGenerator

CARD = ModelCard("demo", "LlamaForCausalLM", "float32", 1000, 320, ("chat",), 0, ("interactive",))


class CheckedGenerator(ScriptedGenerator):
    """Refuses what the router refuses, and answers the rest with a token or two."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        endpoints = {"chat": EndpointConfig(max_output_tokens=2)}
        self.preprocessor = Preprocessor(CARD, tokenizer, endpoints, threads=1, eos_ids=[257])

    async def count_tokens(self, model: str, prompt: ChatPrompt) -> int:
        return await self.preprocessor.count(model, prompt)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        prepared = await self.preprocessor.prepare(request, "id", None)
        async for event in super().generate(replace(request, sampling=prepared.sampling)):
            yield event
