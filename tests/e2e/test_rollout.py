"""Versions that take over from each other under load, on real Ray clusters: none is dropped."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
import torch

from cluster.api import Tokens
from cluster.deploy.embedded_redis import EmbeddedRedis
from tandem_client import Client
from tests import tiny
from tests.e2e.serving import serve, stop
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# However slow the machine is: nothing is refused, nobody is taken for dead, every stream may end.
CONFIG = """
kv: {{blocks: 1200, silence_s: 20}}
directory: {{lease_s: 15{url}}}
decode: {{max_batch: {max_batch}, itl_budget_ms: 60000}}
router: {{kv_overcommit: 100.0}}
ray: {{drain_s: 120}}
endpoints: {{chat: {{max_output_tokens: 2048, ttft_budget_ms: 600000, itl_budget_ms: 60000}}}}
"""
# Kind of request: tokens of the prompt, and of the answer.
LONG, SHORT, PROMPT = (40, 1500), (12, 24), (900, 8)
KINDS = (LONG, SHORT, PROMPT)
RATE = 2.0
ANSWERED_S = 120


@dataclass
class Answered:
    """A request that got exactly the tokens of one of the versions."""

    kind: tuple[int, int]
    version: str
    began_s: float
    ended_s: float


class Load:
    """Requests all the time; `expected` has by version and kind the prompt and its answer."""

    def __init__(self, expected):
        self.expected = expected
        self.answered = []
        self.texts = []
        self.enough = asyncio.Event()
        # Set amid the answer of a first long stream.
        self.amid = asyncio.Event()

    async def one(self, client, kind):
        prompt, _ = self.expected["old"][kind]
        options = {"max_tokens": kind[1], "temperature": 0, "ignore_eos": True, "timeout_s": 300}
        began_s, got = time.monotonic(), []
        async for event in client.generate(prompt, **options):
            if isinstance(event, Tokens):
                assert event.index == len(got)
                got += [token.token for token in event.tokens]
                if len(got) > LONG[1] / 2:
                    self.amid.set()
        self._note(kind, got, began_s)

    async def over_http(self, url):
        """A long stream; returns its text, and when it began."""
        prompt, _ = self.expected["old"][LONG]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": LONG[1], "temperature": 0}
        body |= {"ignore_eos": True, "stream": True}
        began_s, lines = time.monotonic(), []
        async with (
            httpx.AsyncClient(timeout=300) as client,
            client.stream("POST", f"{url}/completions", json=body) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                lines += [line.removeprefix("data: ")] if line else []
        assert lines[-1] == "[DONE]"
        return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1]), began_s

    async def over_http_again(self, url):
        while not self.enough.is_set():
            text, began_s = await self.over_http(url)
            self.texts.append((text, began_s, time.monotonic()))

    def _note(self, kind, got, began_s):
        versions = [name for name, kinds in self.expected.items() if kinds[kind][1] == got]
        assert versions, f"{len(got)} tokens of {kind[1]} that are no version's: {got[:8]}"
        self.answered.append(Answered(kind, versions[0], began_s, time.monotonic()))

    async def again_and_again(self, client, kind):
        while not self.enough.is_set():
            await self.one(client, kind)

    async def at_random(self, group, client):
        """Open-loop: arrivals take no notice of answers."""
        rng = random.Random(1)
        while not self.enough.is_set():
            await asyncio.sleep(rng.expovariate(RATE))
            group.create_task(self.one(client, rng.choice((SHORT, PROMPT))))

    @asynccontextmanager
    async def running(self, client):
        """Long streams one after the other, and others as they come; all end, or the test fails.

        Streams that begin together end together, too. So some begin amid the answers of others.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self.at_random(group, client))
            for _ in range(2):
                group.create_task(self.again_and_again(client, LONG))
            await self.amid.wait()
            group.create_task(self.again_and_again(client, LONG))
            yield group
            self.enough.set()

    def count(self, version):
        return sum(one.version == version for one in self.answered)

    def first_began_s(self, version):
        return min(one.began_s for one in self.answered if one.version == version)


@pytest.fixture(scope="module")
def new_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def expected(model, new_folder):
    """By version and kind: a prompt, and the greedy answer of that version's weights.

    Shape and name are the same: KV of one would pass for the other's, but for its values.
    """
    models = {"old": model, "new": tiny.make(new_folder, initializer_range=0.27)}
    found = {}
    for version, reference in models.items():
        found[version] = {kind: answer(reference, kind) for kind in KINDS}
    assert all(found["old"][kind][1] != found["new"][kind][1] for kind in KINDS)
    return found


def answer(reference, kind):
    prompt_tokens, new_tokens = kind
    rng = random.Random(prompt_tokens)
    prompt = [rng.randrange(256) for _ in range(prompt_tokens)]
    out = reference.generate(
        torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False, eos_token_id=None
    )
    return prompt, out[0, prompt_tokens:].tolist()


def write(path, *, url=None, max_batch=32):
    path.write_text(CONFIG.format(url=f", url: {url}" if url else "", max_batch=max_batch))
    return str(path)


async def command(serving, *arguments):
    done = await asyncio.to_thread(serving.tandem, *arguments, timeout_s=240)
    return done.returncode, done.stdout + done.stderr


async def two_rollouts(serving, expected, folder, new_folder):
    """Other weights, then other settings, then a model that cannot be served."""
    load = Load(expected)
    async with Client(serving.grpc) as client:
        old_text, _ = await load.over_http(serving.http)
        async with load.running(client) as group:
            group.create_task(load.over_http_again(serving.http))
            await eventually(lambda: any(one.kind == LONG for one in load.answered), ANSWERED_S)
            # Two, so that one is under way at the change even where the other has just ended.
            group.create_task(load.over_http_again(serving.http))
            await eventually(lambda: load.count("old") >= 10, ANSWERED_S)
            again = ("rollout", "--config", write(folder / "new.yaml"), "--model", str(new_folder))
            code, output = await command(serving, *again)
            assert code == 0, output
            switched_s = time.monotonic()
            # All that begins from here on is the new version's: the old one takes nothing new.
            await eventually(lambda: load.count("new") >= 10, ANSWERED_S)
            await load.one(client, SHORT)
            assert load.answered[-1].version == "new"
            other = write(folder / "other.yaml", max_batch=16)
            code, output = await command(
                serving, "rollout", "--config", other, "--model", str(new_folder)
            )
            assert code == 0, output
        bad = folder / "bad"
        bad.mkdir()
        (bad / "config.json").write_text('{"model_type": "t5", "architectures": ["T5Model"]}')
        code, output = await command(serving, "rollout", "--config", other, "--model", str(bad))
        assert code == 2
        assert "rollout failed" in output
        await load.one(client, LONG)
    new_text, _ = await load.over_http(serving.http)
    assert {text for text, *_ in load.texts} <= {old_text, new_text}
    began_s = load.first_began_s("new")
    began_s = min([began_s] + [began for text, began, _ in load.texts if text == new_text])
    assert any(text == old_text and a < began_s < b for text, a, b in load.texts)
    return load, switched_s


def test_weights_and_settings_change_under_load_without_a_lost_request(
    expected, model_folder, new_folder, tmp_path, capsys
):
    arguments = ("--model", str(model_folder), "--dtype", "float32")
    config = write(tmp_path / "old.yaml")
    with serve(*arguments, "--config", config, folder=tmp_path) as serving:
        done = asyncio.run(two_rollouts(serving, expected, tmp_path, new_folder))
    load, switched_s = done
    # The command returns some time after the change: streams of the old version may end before it.
    changed_s = load.first_began_s("new")
    across = [one for one in load.answered if one.began_s < changed_s < one.ended_s]
    with capsys.disabled():
        print(
            f"\n{load.count('old')} answers of the old version, {load.count('new')} of the new "
            f"one, {len(across)} across the change"
        )
    assert load.count("old") >= 5
    assert load.count("new") >= 5
    assert any(one.version == "old" and one.kind == LONG for one in across)
    assert all(one.version == "new" for one in load.answered if one.began_s > switched_s + 2)


async def side_by_side(old, new, load):
    """New requests go to the new cluster; the old one is ended while its streams run."""
    async with Client(old.grpc) as first, Client(new.grpc) as second:
        streams = [asyncio.create_task(load.one(first, LONG)) for _ in range(4)]
        await asyncio.gather(*(load.one(second, kind) for kind in (SHORT, PROMPT)))
        assert not any(stream.done() for stream in streams)
        ending = asyncio.create_task(asyncio.to_thread(stop, old.process, 150))
        while not ending.done():
            await asyncio.gather(*(load.one(second, kind) for kind in (SHORT, PROMPT)))
        await asyncio.gather(*streams)
        await ending
        await load.one(second, LONG)


def test_two_clusters_in_one_directory_and_the_old_one_outlives_its_streams(
    expected, model_folder, new_folder, tmp_path
):
    """As a RayService upgrade has them, but in one namespace, so nothing else keeps them apart."""
    with ExitStack() as stack:
        redis = EmbeddedRedis.start()
        stack.callback(redis.stop)
        running = {}
        for version, folder in (("old", model_folder), ("new", new_folder)):
            place = tmp_path / version
            place.mkdir()
            arguments = ["--model", str(folder), "--dtype", "float32"]
            arguments += ["--config", write(place / "c.yaml", url=redis.url)]
            running[version] = stack.enter_context(serve(*arguments, folder=place))
        load = Load(expected)
        asyncio.run(side_by_side(running["old"], running["new"], load))
        members = running["new"].replicas()
    assert running["old"].process.returncode == 0
    assert load.count("old") == 4
    assert {one.kind for one in load.answered if one.version == "old"} == {LONG}
    assert len(members) == 3
