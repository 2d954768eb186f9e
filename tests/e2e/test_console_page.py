"""The console's page by itself: focus, what screen readers hear, odd names, keys, lost routers."""

from __future__ import annotations

import asyncio
import re

import pytest

from cluster.telemetry.requests.row_clock import row_clock
from cluster.telemetry.requests.store import RequestStore
from engine.errors import Unavailable
from tests.e2e.browser import PHONE, needs_chromium, serious
from tests.e2e.console_page import OPERATOR, PageSource, endpoint, replica, running, shown, tenant

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), needs_chromium]
ODD_NAMES = ("__proto__", "constructor", "toString")
# Counts what each live region says.
LISTEN = """() => {
  globalThis.heard = [];
  for (const one of document.querySelectorAll("[role=status], [aria-live], [role=log]")) {
    const hear = () => { if (one.textContent) heard.push(`${one.id}: ${one.textContent}`); };
    new MutationObserver(hear).observe(one, {childList: true, subtree: true, characterData: true});
  }
}"""
WIDER = "() => document.scrollingElement.scrollWidth - innerWidth"


async def test_a_focused_button_keeps_the_focus_while_other_rows_come_and_go():
    source = PageSource()
    source.views = [running(f"r{number}", 10 - number) for number in range(6)]
    async with shown(source, hash="#requests") as one:
        stop = one.page.locator("button[aria-label='stop r2']")
        await stop.focus()
        # Rows before and behind it leave, one comes, and it moves to the head: it waits.
        source.views = [
            running("r2", 20, ttft_s=None),
            *(running(f"r{number}", 10 - number) for number in (0, 3, 4, 9)),
        ]
        await one.page.locator("button[aria-label='stop r5']").wait_for(state="detached")
        first = one.page.locator("#running-rows tr").first
        assert await first.locator("th").inner_text() == "r2"
        assert await one.focused() == "stop r2"
        source.views = [running("r0", 10)]
        await stop.wait_for(state="detached")
        assert await one.focused() == "Running requests"


async def test_rows_that_are_held_keep_their_places_under_the_mouse():
    source = PageSource()
    source.views = [running("r1", 3), running("r2", 5)]
    async with shown(source, hash="#requests") as one:
        names = one.page.locator("#running-rows th")
        await one.page.check("#filter-paused")
        source.views = [running("r3", 1), running("r2", 5, tokens=77)]
        await one.page.locator("#running-rows", has_text="77").wait_for()
        assert await names.all_inner_texts() == ["r1", "r2"]
        await one.page.locator("#running-rows tr", has_text="has ended").wait_for()
        await one.page.uncheck("#filter-paused")
        await one.page.locator("button[aria-label='stop r1']").wait_for(state="detached")
        assert await names.all_inner_texts() == ["r3", "r2"]


async def test_screen_readers_hear_what_is_new_and_no_moving_numbers():
    source = PageSource()
    source.ended()
    async with shown(source) as one:
        await one.page.locator("#headline", has_text="1 first tokens").wait_for()
        await one.page.evaluate(LISTEN)
        for number in range(2, 8):
            source.ended(f"r{number}")
            await one.page.locator("#headline", has_text=f"{number} first tokens").wait_for()
        assert await one.page.evaluate("() => heard") == []
        assert "TTFT did not rise" in await one.page.locator("#told").inner_text()


async def test_the_skip_link_stays_on_the_page_and_unknown_addresses_show_the_overview():
    async with shown(PageSource(), hash="#tenants") as one:
        await one.page.focus(".skip")
        await one.page.keyboard.press("Enter")
        assert await one.focused() == "main"
        assert await one.page.locator("#tenants").is_visible()
        for name in (*ODD_NAMES, "nothing"):
            await one.page.evaluate("(name) => { location.hash = name; }", name)
            await one.page.locator("#overview").wait_for()
        assert "Overview" in await one.page.title()
        await one.page.go_back()
        await one.page.go_forward()
        assert await one.page.locator("#overview").is_visible()


async def test_names_that_clients_choose_neither_break_the_charts_nor_crowd_them():
    source = PageSource()
    source.sections["tenants"] = {name: tenant() for name in ODD_NAMES}
    for name in (*ODD_NAMES, *(f"guess {number}" for number in range(20))):
        source.ended(name, outcome="NotFound", endpoint=name)
    async with shown(source) as one:
        legend = one.page.locator("#ttft-legend")
        await legend.filter(has_text="Nothing to show yet").wait_for()
        source.ended("good")
        await legend.filter(has_text="chat p50").wait_for()
        assert await legend.locator(".entry").count() == 1
        assert re.search(r" at \d\d:\d\d:\d\d; budget", await legend.inner_text())
        await one.page.click("nav a[href='#tenants']")
        await one.page.locator("#tenant-rows th", has_text="constructor").wait_for()
        told = await one.page.locator("#tenant-rows").inner_text()
        assert "NaN" not in told
        assert "0, no cap" in told


async def test_the_rate_of_a_tenant_is_over_the_time_that_a_young_router_has_seen():
    source = PageSource()
    source.rows = RequestStore(since=row_clock() - 20)
    source.ended(prompt_tokens=9000, outcome="ok")
    async with shown(source, hash="#tenants") as one:
        cell = one.page.locator("#tenant-rows td", has_text="tokens/s")
        (rate,) = re.findall(r"([\d,]+) tokens/s", await cell.inner_text())
    assert 10 < int(rate.replace(",", "")) <= 450


async def test_the_legend_has_the_colours_of_the_lines():
    source = PageSource()
    source.settings["endpoints"] = {"a": endpoint(), "b": endpoint()}
    async with shown(source) as one:

        def swatch(name):
            entry = one.page.locator("#ttft-legend .entry").filter(has_text=f"{name} p50")
            return entry.locator("i")

        source.ended("r1", endpoint="b")
        await swatch("b").and_(one.page.locator(".line-0")).wait_for()
        source.ended("r2", endpoint="a")
        await swatch("a").and_(one.page.locator(".line-0")).wait_for()
        await swatch("b").and_(one.page.locator(".line-1")).wait_for()


async def test_a_key_that_no_header_carries_is_not_taken_and_a_key_given_later_is_used():
    async with shown(PageSource(), keys=True) as one:
        dialog = one.page.locator("#key-dialog")
        for key in ("ключ", "key\u200b", ""):
            await one.page.fill("#key-input", key)
            await one.page.press("#key-input", "Enter")
            assert await dialog.is_visible(), key
        for _ in range(2):
            await dialog.locator("button[value=cancel]").click()
            await one.page.locator("#live", has_text="stopped").wait_for()
            assert not await dialog.is_visible()
            await one.page.click("#key-button")
        await one.page.fill("#key-input", OPERATOR)
        await one.page.press("#key-input", "Enter")
        await one.page.wait_for_selector("#live.on")


async def test_no_key_is_asked_for_where_a_proxy_changes_the_origin():
    async def refuse(route):
        error = {"message": "pages of another origin may not call", "code": "forbidden_origin"}
        await route.fulfill(status=403, json={"error": error})

    async with shown(PageSource()) as one:
        await one.page.route("**/console/drain*", refuse)
        await one.page.click("button[aria-label='drain decode-0']")
        await one.page.click("#act-yes")
        await one.page.locator(".note", has_text="another origin").wait_for()
        assert not await one.page.locator("#key-dialog").is_visible()


async def test_the_answer_for_an_earlier_row_does_not_come_into_a_later_one():
    slow, go = asyncio.Event(), asyncio.Event()

    class Slow(PageSource):
        async def listed(self, wanted):
            if wanted.request_id == "slow":
                slow.set()
                await go.wait()
            return await super().listed(wanted)

    source = Slow()
    source.ended("slow")
    source.ended("fast")
    async with shown(source, hash="#requests") as one:
        body = one.page.locator("#request-body")
        await one.page.click("button[title=slow]")
        await asyncio.wait_for(slow.wait(), 60)
        await one.page.keyboard.press("Escape")
        await one.page.click("button[title=fast]")
        await body.filter(has_text="request fast").wait_for()
        async with one.page.expect_response("**/request?id=slow*"):
            go.set()
        await one.page.evaluate("() => new Promise(requestAnimationFrame)")
        assert "request fast" in await body.inner_text()
        source.rows = RequestStore()
        await one.page.keyboard.press("Escape")
        await one.page.click("button[title=slow]")
        await body.filter(has_text="is remembered").wait_for()


async def test_a_request_that_went_by_is_opened_by_its_id():
    source = PageSource()
    for number in range(300):
        source.ended(f"r{number}")
    async with shown(source, hash="#requests") as one:
        await one.page.locator("#ended-count", has_text="60 of 100").wait_for()
        for number in range(300, 500):
            source.ended(f"r{number}")
        await one.page.locator("#ended-count", has_text="160 more went by too fast").wait_for()
        await one.page.fill("#filter-text", "r42")
        await one.page.click("#open-id")
        await one.page.locator("#request-body", has_text="request r42:").wait_for()


async def test_a_page_without_its_router_says_so():
    source = PageSource()
    source.sections["links"] = []
    async with shown(source, tolerated="ERR_") as one:

        async def lost(route):
            await route.abort()

        await one.page.route("**/console/**", lost)
        await one.console.feed.close()
        live = one.page.locator("#live")
        await live.filter(has_text="trying again; the page shows").wait_for()
        assert await one.page.locator("body.stale").count() == 1
        await one.page.click("nav a[href='#requests']")
        await one.page.click("#filter button[type=submit]")
        await one.page.locator(".note", has_text="the router does not answer").wait_for()


async def test_a_configuration_that_is_refused_is_not_asked_for_all_the_time():
    source = PageSource()
    asked = []

    def refuse():
        asked.append(1)
        raise Unavailable("not now")

    source.configuration = refuse
    source.views = [running("r")]
    async with shown(source, hash="#configuration", tolerated="status of 5") as one:
        await one.page.locator("#settings", has_text="not now").wait_for()
        await one.page.evaluate("() => new Promise((resolve) => setTimeout(resolve, 2500))")
        assert len(asked) == 1


async def test_a_canary_keeps_the_focus_and_its_place_while_its_figures_move():
    source = PageSource()
    stats = {"requests": 1, "failed": 0, "ttft_p95_s": 0.2}
    canary = {"endpoint": "chat", "served_as": "chat-new", "share": 0.1, "reason": None}
    source.sections["canaries"] = [canary | {"stable": stats, "canary": stats}]
    async with shown(source, hash="#configuration", size=PHONE) as one:
        arms = one.page.locator("[aria-label='Arms of chat']")
        await arms.focus()
        await arms.evaluate("(one) => { one.scrollLeft = 40; }")
        more = stats | {"requests": 7}
        source.sections["canaries"] = [canary | {"stable": more, "canary": stats}]
        await arms.locator("td", has_text="7").wait_for()
        assert await one.focused() == "Arms of chat"
        assert await arms.evaluate("(one) => one.scrollLeft") == 40


async def test_the_playground_tells_of_a_broken_stream_and_sends_no_empty_number():
    sent = []

    async def broken(route):
        sent.append(route.request.post_data_json)
        chunk = 'data: {"choices": [{"delta": {"content": "half"}}]}\n\n'
        await route.fulfill(status=200, content_type="text/event-stream", body=chunk)

    async with shown(PageSource(), hash="#playground") as one:
        await one.page.route("**/v1/chat/completions", broken)
        await one.page.locator("#play-endpoint option").first.wait_for(state="attached")
        for name in ("tokens", "temperature", "top-p", "seed"):
            await one.page.fill(f"#play-{name}", "")
        await one.page.click("#play button.main")
        await one.page.locator("#play-state", has_text="broke off").wait_for()
        assert not {"max_tokens", "temperature", "top_p", "seed"} & sent[0].keys()
        assert await one.page.locator(".answer").inner_text() == "half"
        assert await one.page.get_attribute("#play-log", "aria-busy") == "false"


LONG = "a-very-long-name-without-a-place-to-break" * 6
HOSTILE_NAMES = ("<b>bold</b>", "שלום עולם", "👩‍👩‍👧‍👦" * 8, "\u202eevil", LONG, *ODD_NAMES)


# 320 is 1280 at a zoom of 400 %.
@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (640, "dark")])
async def test_no_view_and_no_dialog_breaks_with_many_rows_and_odd_names(width, scheme):
    source = PageSource()
    names = [*HOSTILE_NAMES, *(f"tenant {number}" for number in range(200))]
    source.settings["model"] = f"models/{LONG}"
    source.sections["tenants"] = {name: tenant() for name in names}
    source.sections["replicas"] |= {
        f"decode-{number}-{LONG}": replica("decode") for number in range(1, 9)
    }
    source.views = [running(f"{name} r", tenant=name) for name in names]
    for number in range(1000):
        name = names[number % len(names)]
        source.ended(f"r{number}", tenant=name, endpoint=("chat", LONG)[number % 2])
    size = {"width": width, "height": 844}
    async with shown(source, size=size, scheme=scheme) as one:
        for view in ("overview", "requests", "tenants", "configuration", "playground"):
            await one.page.click(f"nav a[href='#{view}']")
            await one.page.locator(f"#{view}").wait_for()
            assert await serious(one.page) == [], view
            assert await one.page.evaluate(WIDER) <= 0, view
            assert not await one.page.locator("main b", has_text="bold").count()
        await one.page.click("nav a[href='#requests']")
        await one.page.check("#filter-paused")
        await one.page.locator("#ended-rows button.open").first.click()
        await one.page.locator("#request-body .waterfall th").first.wait_for()
        assert await serious(one.page) == []
        await one.page.keyboard.press("Escape")
        await one.page.click("nav a[href='#overview']")
        await one.page.locator("button.kill").last.click()
        await one.page.locator("#act-dialog[open]").wait_for()
        assert await serious(one.page) == []
        await one.page.click("#act-yes")
        await one.page.locator("#key-dialog[open]").wait_for()
        assert await serious(one.page) == []
