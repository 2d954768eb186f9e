"""Answers with very many log-probabilities: written off the event loop, and bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.sync.client import connect

from cluster.api import Event, GenerateRequest, Started, Tokens
from cluster.gateway import openai_response
from cluster.gateway.sse import dump, dump_large
from engine.types.sequence import SampledToken
from tests.cluster.gateway.http_listener import CHAT, HELLO, TEXT, error_of, front_end
from tests.cluster.scripted_generator import CARD, ScriptedGenerator, summary_of
from tests.loop_pauses import pause_of

MOST_S = 0.5
TOKENS, TOP = 20_000, 20


class WideGenerator(ScriptedGenerator):
    """Sends all tokens in one event, each with twenty candidates."""

    async def _events(self, request: GenerateRequest) -> AsyncIterator[Event]:
        yield Started(request.request_id, CARD.name, 1, 7)
        top = tuple((token, -0.5) for token in range(TOP))
        sampled = tuple(SampledToken(1, -0.5, top) for _ in range(TOKENS))
        yield Tokens(0, 0, (1,) * TOKENS, "x" * TOKENS, "length", sampled)
        yield summary_of(request, 1, TOKENS)


BODIES = {
    "chat": (CHAT, HELLO | {"logprobs": True, "top_logprobs": TOP}),
    "completion": (TEXT, {"prompt": "a", "logprobs": TOP}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("form", BODIES)
async def test_http_answers_do_not_hold_the_loop(form, stream):
    path, body = BODIES[form]
    async with front_end(WideGenerator()) as port:
        url = f"http://127.0.0.1:{port}{path}"

        def ask() -> str:
            return httpx.post(url, json=body | {"stream": stream}, timeout=60).text

        pauses, [text] = await pause_of([ask])
    assert pauses.longest_s <= MOST_S
    documents = text.split("data: ")[1:-1] if stream else [text]
    whole = [json.loads(one)["choices"][0] for one in documents]
    listings = [one["logprobs"] for one in whole if one["logprobs"]]
    counts = [len(one.get("content") or one.get("tokens")) for one in listings]
    assert sum(counts) == TOKENS


async def test_messages_of_a_websocket_do_not_hold_the_loop():
    async with front_end(WideGenerator()) as port:

        def ask() -> list[str]:
            url = f"ws://127.0.0.1:{port}/v1/stream"
            with connect(url, max_size=None, compression=None) as socket:
                socket.send(json.dumps(BODIES["chat"][1] | {"id": "1", "type": "chat"}))
                return [str(socket.recv(60)) for _ in range(3)]

        pauses, [texts] = await pause_of([ask])
    assert pauses.longest_s <= MOST_S
    started, tokens, last = map(json.loads, texts)
    assert (started["type"], last["type"]) == ("started", "end")
    assert len(tokens["logprobs"]["content"]) == TOKENS


async def test_a_whole_answer_has_a_bound(monkeypatch):
    monkeypatch.setattr(openai_response, "MAX_NUMBERS", TOKENS)
    async with (
        front_end(WideGenerator()) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        error = error_of(await client.post(TEXT, json=BODIES["completion"][1]), 400)
    assert "log-probabilities" in error["message"]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), values | st.lists(st.integers(), min_size=500, max_size=1100)))
def test_pieces_are_the_same_as_the_whole(document):
    assert dump_large(document) == dump(document)
