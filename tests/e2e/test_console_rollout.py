"""The console in a real browser: a stall while it lasts, and versions that follow each other."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from tests.e2e.browser import browser, needs_chromium, page_of, serious
from tests.e2e.meanwhile import meanwhile
from tests.e2e.serving import serve
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), needs_chromium]
BUDGETS = {"ttft_budget_ms": 600_000, "itl_budget_ms": 60_000}
# The longest ITL of a legend, from one second on.
LONG = re.compile(r"longest [1-9][\d.]* s")
ARMS = "section[aria-label='Canary of chat']"
# The cells of a table's rows, at one moment: the page replaces tables while they are read.
CELLS = """(selector) => {
  const rows = document.querySelector(selector)?.tBodies[0].rows ?? [];
  return Array.from(rows, (row) => Array.from(row.cells, (cell) => cell.textContent));
}"""


def canary(share, budget_ms, **guard):
    trial = BUDGETS | {"ttft_budget_ms": budget_ms}
    chat = BUDGETS | {"canary": {"endpoint": "trial", "share": share, "guard": guard}}
    return {"chat": chat, "trial": trial}


# The configuration that runs first, and the two that follow it.
PLAIN = {"chat": BUDGETS}
WORKS = canary(0.5, 600_000, ttft_p95_ratio=1000, min_requests=4000)
FAILS = canary(0.5, 0.001, min_requests=5)


def write(folder, name, endpoints):
    # A replica that stands still for a while is not taken for dead.
    slow = {"kv": {"silence_s": 60}, "directory": {"lease_s": 45}}
    config = {"endpoints": endpoints, "router": {"kv_overcommit": 100.0}} | slow
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(config))
    return str(path)


@pytest.fixture(scope="module")
def serving(model, model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("versions")
    arguments = ("--model", str(model_folder), "--dtype", "float32")
    with serve(*arguments, "--config", write(folder, "plain", PLAIN), folder=folder) as running:
        yield running


@asynccontextmanager
async def shown_at(serving, page):
    url = f"{serving.http.removesuffix('/v1')}/console#{page}"
    async with browser() as chromium, page_of(chromium, url) as found:
        await found.wait_for_selector("#live.on")
        yield found


async def stream(url, begun):
    """A long answer; its number of events."""
    body = {"prompt": [5] * 20, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    count = 0
    async with (
        httpx.AsyncClient(timeout=120) as client,
        client.stream("POST", f"{url}/completions", json=body) as answer,
    ):
        async for _ in answer.aiter_lines():
            count += 1
            if count > 8:
                begun.set()
    return count


async def test_a_stall_shows_while_it_lasts(serving):
    replicas = await asyncio.to_thread(serving.replicas)
    address = next(one["address"] for one in replicas if one["role"] == "decode")
    pid, begun = serving.pid_of(address), asyncio.Event()
    async with shown_at(serving, "requests") as page:
        answer = asyncio.create_task(stream(serving.http, begun))
        await asyncio.wait_for(begun.wait(), 90)
        stall = page.locator("#running-rows td.problem", has_text="goes on")
        await stall.wait_for(state="detached")
        os.kill(pid, signal.SIGSTOP)
        try:
            await stall.wait_for()
            await page.locator("#running-count", has_text="1 stalled").wait_for()
            await page.click("nav a[href='#overview']")
            legend = page.locator("#itl-legend", has_text=LONG)
            await legend.wait_for()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert await asyncio.wait_for(answer, 120) > 100
        assert await serious(page) == []


def traffic(url):
    """Requests to the endpoint that has the canary, while the block runs."""

    async def ask():
        body = {"prompt": [5] * 20, "max_tokens": 4, "ignore_eos": True, "endpoint": "chat"}
        async with httpx.AsyncClient(timeout=120) as client:
            while True:
                with suppress(httpx.TransportError):  # a router ended meanwhile
                    answer = await client.post(f"{url}/completions", json=body)
                    assert answer.status_code in (200, 429, 503), answer.text

    return meanwhile(ask(), ask())


class Configuration:
    """The page of the configuration, and what it said of the versions."""

    def __init__(self, page, serving):
        self.page = page
        self.serving = serving
        self.said = []
        self.seen = set()

    async def text(self, selector):
        return await self.page.locator(selector).inner_text()

    async def versions(self):
        """The versions with the replicas of each: routers, prefill, decode, leaving."""
        await self.page.wait_for_selector("#versions tbody tr")
        cells = await self.page.evaluate(CELLS, "#versions table")
        found = {row[0].split()[0]: tuple(map(int, row[1:])) for row in cells}
        self.seen.add(frozenset(found))
        return found

    async def roll_out(self, config, *more):
        """Run the command; note meanwhile what the page says. Returns its exit and output."""
        arguments = ("rollout", "--config", config, *more)
        run = asyncio.to_thread(self.serving.tandem, *arguments, timeout_s=240)
        task = asyncio.create_task(run)
        while not task.done():
            step = self.page.locator("#rollout-steps [aria-current=step]")
            now = await step.all_inner_texts()
            self.said.append(("".join(now), await self.text("#rollout")))
            await self.versions()
            await asyncio.wait([task], timeout=0.2)
        done = await task
        return done.returncode, done.stdout + done.stderr

    async def says(self, selector, pattern, within_s=60):
        async def found():
            return re.search(pattern, await self.text(selector))

        return await eventually(found, within_s, 0.2)


async def test_rollouts_and_canaries_are_followed(serving, model_folder, tmp_path):
    again = ("--model", str(model_folder))
    async with shown_at(serving, "configuration") as page, traffic(serving.http):
        shown = Configuration(page, serving)
        (old,) = await shown.versions()
        assert await shown.text("#rollout") == "No rollout was asked for."
        assert "No endpoint has a canary" in await shown.text("#canaries")
        replicas = page.locator("#versions table").last.locator("tbody tr")
        assert await replicas.count() == 3

        code, output = await shown.roll_out(write(tmp_path, "works", WORKS), *again)
        assert code == 0, output
        new = re.search(r"(\w+) serves", output)[1]
        await shown.says("#rollout", f"^Version {new} serves")
        assert any(step == "starting" and new in text for step, text in shown.said)
        await eventually(lambda: is_alone(shown, new), 180, 0.2)
        assert frozenset((old, new)) in shown.seen
        await arms_have_figures(shown)
        assert await serious(page) == []

        code, output = await shown.roll_out(write(tmp_path, "fails", FAILS), *again)
        assert code == 0, output
        await shown.says(ARMS, r"trial was rolled back: .* failed, .* elsewhere")
        stable, trial = await arms(shown)
        assert (stable[2], trial[2]) == ("100%", "0%")
        assert not trial[4].startswith("0 ")
        assert await serious(page) == []

        bad = tmp_path / "bad"
        bad.mkdir()
        (bad / "config.json").write_text('{"model_type": "t5", "architectures": ["T5Model"]}')
        code, output = await shown.roll_out(write(tmp_path, "again", PLAIN), "--model", str(bad))
        assert code == 2, output
        await shown.says("#rollout", "^The rollout.* failed and was rolled back: .*T5")
        assert await shown.text("#rollout-steps [aria-current=step]") == "failed"


async def is_alone(shown, version):
    found = await shown.versions()
    return set(found) == {version} and found[version] == (1, 1, 1, 0)


async def arms(shown):
    return await shown.page.evaluate(CELLS, f"{ARMS} table")


async def arms_have_figures(shown):
    """Both arms have requests and a TTFT, and the numbers grow."""
    await shown.says(ARMS, "50% of the requests to chat are served as trial")

    async def counts():
        found = await arms(shown)
        assert [row[1:3] for row in found] == [["chat", "50%"], ["trial", "50%"]]
        timed = all(re.match(r"[\d.]+ m?s", row[5]) for row in found)
        return [int(row[3].replace(",", "")) for row in found] if timed else None

    before = await eventually(counts, 60, 0.2)

    async def grew():
        now = await counts()
        return now and all(a > b for a, b in zip(now, before, strict=True))

    await eventually(grew, 60, 0.2)
