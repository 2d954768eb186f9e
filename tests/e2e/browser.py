"""A headless Chromium, driven by Playwright; the tests are skipped where the machine has none."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: install it")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
# axe-core 4.14.1, compressed.
_AXE = Path(__file__).parent / "axe" / "axe.min.js.xz"
_RUN_AXE = "() => axe.run(document, {resultTypes: ['violations']})"
_WAIT_MS = 30_000


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    """A Chromium of this machine."""
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        # A test may run as root in a container, where Chromium's sandbox does not start.
        started = await driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=3 * _WAIT_MS
        )
        try:
            yield started
        finally:
            await started.close()


@asynccontextmanager
async def page_of(
    chromium: Any,
    url: str,
    *,
    size: dict[str, int] = DESKTOP,
    scheme: str = "light",
    tolerated: str = "status of 4",
) -> AsyncIterator[Any]:
    """A page at that address. At its end nothing was asked of other hosts, and no script failed.

    Messages of the browser's console with the text `tolerated` tell of no fault, nor do refusals.
    """
    context = await chromium.new_context(viewport=size, color_scheme=scheme)
    context.set_default_timeout(_WAIT_MS)
    page = await context.new_page()
    origin, asked, faults = "/".join(url.split("/")[:3]), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    known = ("status of 4", tolerated)
    page.on("console", lambda one: faults.append(one.text) if _is_fault(one, known) else None)
    try:
        await page.goto(url)
        yield page
    finally:
        await context.close()
    assert not [one for one in asked if not one.startswith(origin)]
    assert not faults


def _is_fault(message: Any, tolerated: tuple[str, ...]) -> bool:
    """Whether a message of the console tells of a fault."""
    return message.type == "error" and not any(text in message.text for text in tolerated)


@cache
def _axe() -> str:
    return lzma.decompress(_AXE.read_bytes()).decode()


async def serious(page: Any) -> list[str]:
    """What axe-core finds wrong with a page, as far as it is serious."""
    await page.evaluate(_axe())
    found = (await page.evaluate(_RUN_AXE))["violations"]
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]
