"""The console in a real browser over a real cluster: it shows what happens, and acts."""

from __future__ import annotations

import asyncio
import json
import random
import re
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
import yaml

from cluster.api import Summary, Tokens
from cluster.console.feed import MOST_VIEWERS
from cluster.tenants.hashed_keys import hash_of
from engine.errors import Cancelled, TandemError
from tandem_client import Client
from tests.e2e.browser import DESKTOP, PHONE, browser, needs_chromium, page_of, serious
from tests.e2e.held import held
from tests.e2e.meanwhile import meanwhile
from tests.e2e.serving import serve
from tests.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480), needs_chromium]
OPERATOR, TENANT = "the operator's key of alice", "the key of acme"
HOSTILE = "<img src=x onerror=alert(1)>"
PAGES = ("overview", "requests", "tenants", "configuration", "playground")
BEGINS_S, REPLACED_S = 90, 150
# A row of a request that was answered; an end of a test cuts others off.
ANSWERED = "#ended-rows tr:not(.failed) button.open"
# Counts the times at which text came to the answer.
COUNT_PIECES = """() => {
  globalThis.pieces = 0;
  const count = () => { globalThis.pieces += 1; };
  const options = {childList: true, subtree: true, characterData: true};
  new MutationObserver(count).observe(document.getElementById("play-log"), options);
}"""


@pytest.fixture(scope="module")
def serving(model, model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("console")
    keys = {"tenants": {"acme": [hash_of(TENANT)]}, "operators": {"alice": [hash_of(OPERATOR)]}}
    (folder / "keys.yaml").write_text(yaml.safe_dump(keys))
    budgets = {"ttft_budget_ms": 600_000, "itl_budget_ms": 60_000, "max_output_tokens": 2000}
    config = {
        "router": {"api_keys": str(folder / "keys.yaml"), "failover_timeout_s": 120},
        "decode": {"replicas": 2},
        "endpoints": {"chat": budgets, HOSTILE: budgets},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    arguments = ("--model", str(model_folder), "--dtype", "float32")
    with serve(*arguments, "--config", str(folder / "config.yaml"), folder=folder) as running:
        yield running


@pytest.fixture
def url(serving):
    return serving.http.removesuffix("/v1") + "/"


@asynccontextmanager
async def console(url, *, key=OPERATOR, hash="", **options):
    """The page, with a key that it asked for."""
    async with browser() as chromium, page_of(chromium, f"{url}{hash}", **options) as page:
        await page.fill("#key-input", key)
        await page.press("#key-input", "Enter")
        await page.wait_for_selector("#live.on")
        yield page


def traffic(url):
    """Requests of both endpoints while the block runs."""

    async def ask(number):
        headers = {"authorization": f"Bearer {TENANT}"}
        async with httpx.AsyncClient(timeout=REPLACED_S, headers=headers) as client:
            while True:
                prompt = [random.randrange(5, 200) for _ in range(random.randrange(20, 300))]
                body = {"prompt": prompt, "max_tokens": 12, "ignore_eos": True}
                body["endpoint"] = HOSTILE if number else "chat"
                answer = await client.post(f"{url}v1/completions", json=body)
                assert answer.status_code == 200, answer.text

    return meanwhile(ask(0), ask(1))


async def show(page, name):
    await page.click(f"nav a[href='#{name}']")
    await page.wait_for_selector(f"#{name}:not([hidden])")


async def text_of(page, selector):
    return await page.locator(selector).inner_text()


async def changes(page, selector, before, timeout_s=60):
    """Wait until the text of an element is another one; returns it."""

    async def other():
        found = await text_of(page, selector)
        return found if found != before else None

    async with asyncio.timeout(timeout_s):
        while (found := await other()) is None:
            await page.wait_for_timeout(100)
    return found


async def test_it_asks_for_an_operators_key(url):
    async with browser() as chromium, page_of(chromium, url) as page:
        assert page.url == f"{url}console"
        reason = page.locator("#key-reason")
        await reason.wait_for()
        assert "operator's key is needed" in await reason.inner_text()
        for wrong, says in (("no key", "not known"), (TENANT, "needs an operator's key")):
            await page.fill("#key-input", wrong)
            await page.press("#key-input", "Enter")
            await page.locator("#key-reason", has_text=says).wait_for()
        assert not await page.locator("#pool-decode .card").count()
        await page.fill("#key-input", OPERATOR)
        await page.press("#key-input", "Enter")
        # The page is drawn a moment after it is live.
        await page.locator("#pool-decode .card").nth(1).wait_for()
        assert await page.locator("#pool-decode .card").count() == 2
        await page.reload()
        await page.wait_for_selector("#live.on")


async def test_a_page_beyond_the_bound_comes_back_when_told(url):
    headers = {"authorization": f"Bearer {OPERATOR}"}
    async with browser() as chromium, page_of(chromium, url) as page:
        async with AsyncExitStack() as stack:
            pool = httpx.AsyncClient(headers=headers, timeout=60)
            client = await stack.enter_async_context(pool)

            async def looks():
                """Whether a feed is open; the page of the test before may have just gone."""
                feed = client.stream("GET", f"{url}console/feed")
                return (await stack.enter_async_context(feed)).status_code == 200

            for _ in range(MOST_VIEWERS):
                await eventually(looks, poll_s=0.2)
            await page.fill("#key-input", OPERATOR)
            await page.press("#key-input", "Enter")
            live = page.locator("#live")
            await live.filter(has_text="16 pages look at this router").wait_for()
            await live.filter(has_text="trying again in 5 s").wait_for()
        await page.wait_for_selector("#live.on")


async def test_charts_move_and_names_with_markup_are_text(url):
    async with console(url) as page, traffic(url):
        chart = page.locator("#ttft-chart canvas")
        await page.locator("#ttft-legend", has_text=f"{HOSTILE} p50").wait_for()
        first, legend = await chart.screenshot(), await text_of(page, "#ttft-legend")
        await changes(page, "#ttft-legend", legend)
        assert await chart.screenshot() != first
        await page.locator("#link-list li").first.wait_for()
        rates = await text_of(page, "#link-list")
        await changes(page, "#link-list", rates)
        # A link shows the last seconds, and a busy machine may move nothing in them.
        await page.locator("#link-list", has_text="B/s").wait_for()
        await page.locator(".link.moving").first.wait_for(state="attached")
        moving = "() => getComputedStyle(document.querySelector('.link')).animationName"
        await page.emulate_media(reduced_motion="reduce")
        assert await page.evaluate(moving) == "none"
        # On a busy machine it may tell of a rise.
        assert "TTFT" in await text_of(page, "#headline")
        assert not await page.locator("img").count()


async def test_replicas_and_tenants_have_their_figures(url):
    async with console(url) as page, traffic(url):
        for pool, name in (("prefill", "1k prompt tokens"), ("decode", "Step")):
            facts = page.locator(f"#pool-{pool} .card dl").filter(has_text=name).first
            await facts.filter(has_text=re.compile(rf"{name}\s*[\d.]+ m?s")).wait_for()
        await show(page, "tenants")
        acme = page.locator("#tenant-rows tr").filter(has_text="acme").locator("td")
        await acme.nth(4).filter(has_text="tokens/s").wait_for()
        assert int((await acme.nth(1).inner_text()).replace(",", "")) > 0
        await acme.nth(2).filter(has_text=re.compile("^0$")).wait_for()


async def test_the_keyboard_is_enough(url):
    async with console(url) as page:
        await page.keyboard.press("Tab")
        focused = "() => document.activeElement.textContent"
        assert await page.evaluate(focused) == "Skip to content"
        while await page.evaluate(focused) != "Requests":
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#requests:not([hidden])")
        while await page.evaluate("() => document.activeElement.id") != "filter-text":
            await page.keyboard.press("Tab")


async def test_a_request_opens_as_a_waterfall(url):
    async with console(url) as page, traffic(url):
        await show(page, "requests")
        await page.fill("#filter-text", "acme")
        await page.locator(ANSWERED).first.wait_for()
        await page.check("#filter-paused")
        await page.locator(ANSWERED).first.click()
        rows = page.locator("#request-body .waterfall th")
        await rows.first.wait_for()
        assert {"prefill", "decode"} <= set(await rows.all_inner_texts())
        assert "The largest part of its TTFT" in await text_of(page, "#request-body")
        await page.keyboard.press("Escape")
        assert not await page.locator("#request-dialog").is_visible()
        await page.fill("#filter-text", "nothing of that name")
        assert await page.locator("#ended-rows tr").count() == 0


async def long_stream(serving, begun, tokens=2000):
    """The tokens of a long stream, the replica that decoded it at its end, or its error."""
    got, summary = [], None
    async with Client(serving.grpc, api_key=TENANT) as client:
        options = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "timeout_s": 240}
        async for event in client.generate([1] * 20, request_id="long", **options):
            if isinstance(event, Tokens):
                got += [one.token for one in event.tokens]
                if len(got) > 4:
                    begun.set()
            elif isinstance(event, Summary):
                summary = event
    return got, summary.choices[0]


async def test_a_request_is_stopped(url, serving):
    begun = asyncio.Event()
    async with console(url, hash="console#requests") as page:
        with held(serving):  # else it may end before the page is used
            stream = asyncio.create_task(long_stream(serving, begun))
            await asyncio.wait_for(begun.wait(), BEGINS_S)
            await page.click("button[aria-label='stop long']")
            await page.get_by_text("Stopped: long").wait_for()
            with pytest.raises((Cancelled, TandemError), match="operator"):
                await asyncio.wait_for(stream, 60)


async def test_the_playground_streams_an_answer(url):
    async with console(url, hash="console#playground") as page:
        await page.fill("#play-key", TENANT)
        await page.fill("#play-tokens", "1500")
        await page.evaluate(COUNT_PIECES)
        await page.click("#play button.main")
        await page.locator("#play-waterfall th").first.wait_for(timeout=180_000)
        assert await page.evaluate("() => pieces") > 2
        names = await page.locator("#play-waterfall th").all_inner_texts()
        assert {"prefill", "decode"} <= set(names)
        assert "tokens, TTFT" in await text_of(page, "#play-state")
        await page.click("#play-clear")
        await page.select_option("#play-form", "choices")
        await page.click("#play button.main")
        await page.locator("#play-waterfall th").first.wait_for(timeout=60_000)
        assert await text_of(page, ".answer") in ("prefill", "decode")
        await page.fill("#play-temperature", "1.5")
        await page.select_option("#play-form", "regex")
        await page.fill("#play-grammar", "(")
        await page.click("#play button.main")
        await page.get_by_text("regex").first.wait_for()


async def check_both_schemes(page, name):
    """Nothing is serious in light colours, nor in dark ones."""
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        await page.wait_for_timeout(700)
        assert await serious(page) == [], (name, scheme)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_axe_finds_nothing_serious(url, size):
    async with console(url, size=size) as page, traffic(url):
        await page.locator("#link-list li").first.wait_for()
        for name in PAGES:
            await show(page, name)
            await check_both_schemes(page, name)
            wider = "() => document.scrollingElement.scrollWidth - innerWidth"
            assert await page.evaluate(wider) <= 0, name
        await show(page, "requests")
        await page.locator(ANSWERED).first.wait_for()
        await page.check("#filter-paused")
        await page.locator(ANSWERED).first.click()
        await page.locator("#request-body .waterfall th").first.wait_for()
        await check_both_schemes(page, "a request")


async def test_a_stream_goes_on_while_its_replica_is_killed(url, serving):
    begun = asyncio.Event()
    undisturbed, _ = await long_stream(serving, begun)
    begun.clear()
    async with console(url, hash="console#requests") as page:
        with held(serving):  # else it may end before the page is used
            stream = asyncio.create_task(long_stream(serving, begun))
            await asyncio.wait_for(begun.wait(), BEGINS_S)
            where = page.locator("tr:has(button[aria-label='stop long']) td").nth(6)
            await where.filter(has_text="decode").wait_for()
            victim = (await where.inner_text()).split(" → ")[-1]
            await show(page, "overview")
            await page.click(f"button[aria-label='kill {victim}']")
            await page.click("#act-yes")
            await page.get_by_text(f"Killed: {victim}").wait_for()
        tokens, choice = await asyncio.wait_for(stream, 120)
        assert tokens == undisturbed
        assert choice.decode_replica != victim
        gone = f"section[aria-label='Replica {victim}']"
        await page.locator(gone).wait_for(state="detached", timeout=1000 * REPLACED_S)
        await eventually(page.locator("#pool-decode .card").nth(1).is_visible, REPLACED_S, 0.2)


async def test_a_drained_replica_is_replaced(url, serving):
    async with console(url) as page, traffic(url):
        before = {one["id"] for one in await asyncio.to_thread(serving.replicas)}
        leaving = next(one for one in before if one.startswith("prefill"))
        await page.click(f"button[aria-label='drain {leaving}']")
        await page.click("#act-yes")
        gone = f"section[aria-label='Replica {leaving}']"
        await page.locator(gone).wait_for(state="detached", timeout=1000 * REPLACED_S)
        await page.locator("#pool-prefill .card").first.wait_for()
