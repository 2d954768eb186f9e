"""The preprocessor: checks, completes and tokenises a request before any replica gets it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from cluster.api import (
    ChatPrompt,
    GenerateRequest,
    ModelCard,
    Prompt,
    ScorePrompt,
    TextPrompt,
    TokenPrompt,
)
from cluster.api.grammar_check import GrammarCheck
from cluster.api.limits import check_choice_tokens, within_numbers
from cluster.api.scoring import shared_tokens
from cluster.api.tokenizer_threads import TokenizerThreads
from cluster.api.validation import check_choices, check_tenant
from cluster.config.endpoint_lookup import endpoint_of, lane_of
from cluster.config.endpoints import EndpointConfig
from cluster.config.stream_mode import delivery_of
from cluster.parsing.chat_preparation import PreparedChat, check_messages, prepare_chat
from cluster.parsing.selection import FormSelection
from cluster.parsing.template_input import characters
from cluster.router.resume_state import PreparedRequest
from engine.errors import InvalidRequest, NotFound, PromptTooLong, shown
from engine.kv.prefix_digest import Chain
from engine.text.text_offsets import TextOffsets
from engine.text.tokenizer import Tokenizer
from engine.types.sampling_params import MAX_LOGPROBS, SamplingParams, check_token
from protos.shared_prompt import SharedPrompt

_MAX_SEED = 2**63
# Bound: token ids that are checked and digested on the event loop; more are on a thread.
FEW_TOKENS = 2048
R = TypeVar("R")


class Preprocessor:
    """Checks requests against a model, its tokenizer and the endpoints.

    `new_chain` makes the empty chain of a tenant; None: there is no prefix cache. `eos_ids` are
    the model's end tokens. `forms` chooses the form of a chat's answers; None: by the chat
    template.
    """

    def __init__(
        self,
        card: ModelCard,
        tokenizer: Tokenizer,
        endpoints: dict[str, EndpointConfig],
        threads: int,
        new_chain: Callable[[str], Chain] | None = None,
        eos_ids: Collection[int] = (),
        forms: FormSelection | None = None,
    ) -> None:
        self._forms = forms or FormSelection(tokenizer)
        self._card = card
        self._tokenizer = tokenizer
        self._endpoints = endpoints
        self._new_chain = new_chain
        self._threads = TokenizerThreads(threads)
        self.grammars = GrammarCheck(tokenizer, card.vocabulary, eos_ids)

    @property
    def model(self) -> ModelCard:
        """The model that requests are checked against."""
        return self._card

    async def prepare(
        self,
        request: GenerateRequest,
        request_id: str,
        capacity_tokens: int | None,
        traceparent: str = "",
    ) -> PreparedRequest:
        """Check and complete a request; raises InvalidRequest, PromptTooLong or NotFound.

        `max_tokens` is a cap: an answer gets what endpoint, context and decode pool have of it.
        `capacity_tokens` are the tokens that the decode pool can hold for one request, if known.
        """
        endpoint = self._endpoint(request)
        if isinstance(request.prompt, ScorePrompt):
            return await self._prepare_scoring(
                request, request.prompt, request_id, endpoint, traceparent
            )
        request.sampling.check(self._card.vocabulary)
        check_choices(request.n)
        check_tenant(request.tenant)
        sampling, form = request.sampling, ""
        if isinstance(request.prompt, ChatPrompt):
            chat = await self._chat(request.prompt, sampling)
            ids, form = chat.ids, chat.form
            sampling = await self.grammars.first(chat.samplings, sampling, request.tenant)
        else:
            await self.grammars.check(sampling, request.tenant)
            ids = await self._tokenize(request.prompt)
        left = self._context_left(len(ids))
        check_choice_tokens(request.n, len(ids))
        max_tokens = self._max_tokens(sampling, request.n, endpoint, left)
        if capacity_tokens is not None:
            max_tokens = max(1, min(max_tokens, capacity_tokens - len(ids) + 1))
        seed = secrets.randbelow(_MAX_SEED) if sampling.seed is None else sampling.seed
        top_k = max(0, sampling.top_k)
        sampling = replace(sampling, max_tokens=max_tokens, seed=seed, top_k=top_k)
        prompt, chain = await self._shared(request.tenant, ids, sampling)
        return PreparedRequest(
            request_id=request_id,
            prompt=prompt,
            choices=request.n,
            ttft_budget_s=endpoint.ttft_budget_s,
            itl_s=endpoint.itl_budget_s,
            lane=endpoint.lane,
            delivery=delivery_of(endpoint, request.progress),
            batch_window_s=endpoint.batch_window_s,
            tenant=request.tenant,
            chain=chain,
            form=form,
            traceparent=traceparent,
        )

    async def count(self, model: str, prompt: ChatPrompt) -> int:
        """The tokens of a chat; raises as `prepare`."""
        self._check_model(model)
        return len((await self._chat(prompt, SamplingParams())).ids)

    async def _chat(self, prompt: ChatPrompt, sampling: SamplingParams) -> PreparedChat:
        check_messages(prompt)
        size = characters(prompt)
        self._check_length(size)
        return await self._threads.run(
            size, lambda: prepare_chat(self._tokenizer, self._forms, prompt, sampling)
        )

    def token_text(self, token: int) -> str:
        """One token as text by itself."""
        return self._tokenizer.token_text(token)

    def offsets(self) -> TextOffsets:
        """The offsets of the tokens of a new text."""
        return TextOffsets(self._tokenizer)

    def text(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return self._tokenizer.decode(ids)

    async def _prepare_scoring(
        self,
        request: GenerateRequest,
        prompt: ScorePrompt,
        request_id: str,
        endpoint: EndpointConfig,
        traceparent: str,
    ) -> PreparedRequest:
        request.sampling.check(self._card.vocabulary)
        check_tenant(request.tenant)
        grammar = request.sampling.grammar
        if grammar is not None:
            raise InvalidRequest("texts are scored without a grammar", field=grammar.field)
        if not 0 <= prompt.top <= MAX_LOGPROBS:
            raise InvalidRequest(f"at most {MAX_LOGPROBS} of the likeliest tokens", field="top")
        ids, scored_from = await self._tokenize_scored(prompt)
        self._context_left(len(ids), answer=0)
        sampling = replace(request.sampling, max_tokens=1, seed=request.sampling.seed or 0)
        shared, chain = await self._shared(request.tenant, ids, sampling)
        return PreparedRequest(
            request_id=request_id,
            prompt=shared,
            choices=1,
            ttft_budget_s=endpoint.ttft_budget_s,
            lane=lane_of(request, endpoint),
            batch_window_s=endpoint.batch_window_s,
            tenant=request.tenant,
            chain=chain,
            scored_from=scored_from,
            top=min(prompt.top, self._card.vocabulary),
            traceparent=traceparent,
        )

    async def _shared(
        self, tenant: str, ids: tuple[int, ...], sampling: SamplingParams
    ) -> tuple[SharedPrompt, Chain | None]:
        """The prompt, encoded, and the digests of its blocks."""
        prompt = SharedPrompt(ids, sampling)
        chain = None if self._new_chain is None else self._new_chain(tenant)

        def compute(tokens: Sequence[int]) -> None:
            _ = prompt.encoded
            if chain is not None:
                chain.follow(tokens, len(tokens))

        await self._over(ids, compute)
        return prompt, chain

    def endpoint_of(self, request: GenerateRequest) -> str:
        """The name of the endpoint that a request goes to, configured or not."""
        return endpoint_of(request, self._endpoints, self._card.endpoints[0])

    def configured(self, request: GenerateRequest) -> EndpointConfig | None:
        """The endpoint that a request goes to; None where it is not configured."""
        return self._endpoints.get(self.endpoint_of(request))

    def _endpoint(self, request: GenerateRequest) -> EndpointConfig:
        self._check_model(request.model)
        name = self.endpoint_of(request)
        if name not in self._endpoints:
            known = ", ".join(self._card.endpoints)
            what = f"endpoint {shown(name)} is not configured; use one of: {known}"
            raise NotFound(what, field="endpoint")
        return self._endpoints[name]

    def _check_model(self, model: str) -> None:
        if model and model != self._card.name:
            what = f"model {shown(model)} is not served here; {self._card.name!r} is"
            raise NotFound(what, field="model")

    async def _tokenize_scored(self, prompt: ScorePrompt) -> tuple[tuple[int, ...], int]:
        """All token ids of a text to be scored, and the position of the first one that is scored.

        Text and continuation are tokenised together. Tokens that differ from those of the text
        alone are scored.
        """
        before, more = prompt.prompt, prompt.continuation
        ids = await self._tokenize(before)
        if more is None:
            return ids, 1
        if isinstance(before, TextPrompt) and isinstance(more, TextPrompt):
            both = await self._tokenize(TextPrompt(before.text + more.text))
            return both, max(1, await self._over(ids, lambda one: shared_tokens(one, both)))
        if isinstance(before, TokenPrompt) and isinstance(more, TokenPrompt):
            return (*ids, *await self._tokenize(more)), len(ids)
        raise InvalidRequest("text and continuation: both texts or both token ids", field="prompt")

    async def _tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, TextPrompt):
            text = prompt.text
            ids: Sequence[int] = await self._threads.run(len(text), lambda: self._encode(text))
        elif isinstance(prompt, ScorePrompt | ChatPrompt):
            raise InvalidRequest("this prompt is no text", field="prompt")
        else:
            self._context_left(len(prompt.ids), answer=0)
            ids = prompt.ids
            await self._over(ids, self._check_ids)
        if not ids:
            raise InvalidRequest("the prompt is empty", field="prompt")
        return tuple(ids)

    def _check_ids(self, ids: Sequence[int]) -> None:
        for token in (min(ids, default=0), max(ids, default=0)):
            check_token("prompt", token, self._card.vocabulary)

    async def _over(self, ids: Sequence[int], function: Callable[[Sequence[int]], R]) -> R:
        """The result of a function of token ids, on a thread where these are many."""
        if len(ids) <= FEW_TOKENS:
            return function(ids)
        return await self._threads.run(len(ids), lambda: function(ids))

    def _encode(self, text: str) -> Sequence[int]:
        if not text:
            raise InvalidRequest("the prompt is empty", field="prompt")
        self._check_length(len(text))
        return self._tokenizer.encode(text)

    def _check_length(self, characters: int) -> None:
        """Refuse a text that is too long for any tokenizer, before tokenising it."""
        self._context_left(characters // self._tokenizer.longest_token, answer=0)

    def _context_left(self, tokens: int, answer: int = 1) -> int:
        left = self._card.context_tokens - tokens
        if left < answer:
            behind = ", and the answer needs one more" if left == 0 else ""
            raise PromptTooLong(
                f"This model's maximum context length is {self._card.context_tokens} tokens. "
                f"However, the prompt is too long: it has at least {tokens} tokens{behind}.",
                field="prompt",
            )
        return left

    def _max_tokens(
        self, sampling: SamplingParams, choices: int, endpoint: EndpointConfig, left: int
    ) -> int:
        """The `max_tokens` of the request, within the endpoint's cap and the context.

        Raises InvalidRequest where the log-probabilities of so many tokens are too many.
        """
        requested = sampling.max_tokens
        capped = min(requested or endpoint.max_output_tokens, endpoint.max_output_tokens, left)
        if sampling.logprobs is None:
            return capped
        most = within_numbers(choices, sampling.logprobs, capped if requested else None)
        return min(capped, most)
