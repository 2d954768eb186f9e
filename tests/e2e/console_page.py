"""The page of the console over a router by script: no cluster, so that a test says what it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cluster.console.app import Console
from cluster.console.source import RunningView
from cluster.telemetry.requests.row_clock import row_clock
from cluster.tenants.api_keys import ApiKeys
from cluster.tenants.hashed_keys import KeyOwner, hash_of
from tests.cluster.console.scripted_source import ScriptedSource, choice, row
from tests.cluster.gateway.http_listener import front_end
from tests.cluster.scripted_generator import ScriptedGenerator
from tests.e2e.browser import browser, page_of

OPERATOR = "the key of alice"
KEYS = ApiKeys({hash_of(OPERATOR): KeyOwner("alice", "operator")})
_CAPS = {
    "concurrent": {"used": 1, "here": 8, "cap": 8},
    "waiting_tokens": {"used": 0, "here": None, "cap": None},
    "kv_tokens": {"used": 950, "here": 1000, "cap": 4000},
}


def replica(role: str, **more: Any) -> dict[str, Any]:
    """A healthy replica as the feed tells of it."""
    blocks = {"total": 1000, "free": 600, "cached": 200, "leased": 50, "quarantined": 0}
    return {
        "role": role,
        "home": role,
        "health": "ok",
        "stalled": False,
        "config": "c0",
        "started_at": 1_700_000_000.0,
        "waiting": 1,
        "running": 2,
        "streams": 3,
        "batch_limit": 16,
        "prefill_s": 0.25 if role == "prefill" else None,
        "step_s": 0.012 if role == "decode" else None,
        "slow": "",
        "promised": 0,
        "prompt_tokens_due": 100,
        "queued_prefill_s": 0.1,
        "blocks": blocks | {"running": 150, "orphaned": 0, "promised": 0},
    } | more


def tenant(weight: float = 1.0) -> dict[str, Any]:
    """A tenant as the feed tells of it."""
    return {"weight": weight, "served": 1.0, "waiting_requests": 0, "caps": _CAPS}


def endpoint(**more: Any) -> dict[str, Any]:
    """The settings of an endpoint that the page gets."""
    return {"lane": "interactive", "ttft_s": 0.5, "itl_s": 0.05, "guard": None} | more


def running(name: str, age_s: float = 1.0, **more: Any) -> RunningView:
    """A request that runs."""
    known = {"tenant": "acme", "ttft_s": 0.1} | more
    tenant, name_of = known.pop("tenant"), known.pop("endpoint", "chat")
    return RunningView(name, tenant, name_of, "interactive", row_clock() - age_s, **known)


class PageSource(ScriptedSource):
    """A router with one replica in each pool, one tenant, and the endpoint `chat`."""

    def __init__(self) -> None:
        super().__init__()
        self.sections = {
            "replicas": {name: replica(name.split("-")[0]) for name in ("prefill-0", "decode-0")},
            "missing": [],
            "tenants": {"acme": tenant()},
            "canaries": [],
            "routers": {},
            "settings": {
                "version": "c0",
                "model": "demo",
                "endpoints": {"chat": endpoint()},
                "keys": False,
                "least_replicas": {"prefill": 1, "decode": 1},
            },
        }

    @property
    def settings(self) -> Any:
        """The settings that the page gets."""
        return self.sections["settings"]

    def ended(self, name: str = "r", ttft_s: float = 0.1, **more: Any) -> None:
        """A request ended just now."""
        at = row_clock() - 1.0
        made = row(name, at, *(() if "outcome" in more else (choice(ttft_s),)), **more)
        self.rows.add(made)


@dataclass
class ShownPage:
    """An open page, its router by script, and that router's port."""

    page: Any
    source: Any
    url: str
    console: Console

    async def focused(self) -> str:
        """The label of the focused element, or its id, or its tag."""
        return await self.page.evaluate(
            "() => document.activeElement.ariaLabel ?? "
            "(document.activeElement.id || document.activeElement.tagName)"
        )


@asynccontextmanager
async def shown(
    source: PageSource, *, keys: bool = False, hash: str = "", **options: Any
) -> AsyncIterator[ShownPage]:
    """The page over that router, once it is live, or once it asks for a key."""
    console = Console(source, source, KEYS if keys else None, KEYS)
    async with front_end(ScriptedGenerator(), more_routes=console.routes()) as port:
        url = f"http://127.0.0.1:{port}/console"
        try:
            async with browser() as chromium, page_of(chromium, f"{url}{hash}", **options) as page:
                await page.wait_for_selector("#key-dialog[open]" if keys else "#live.on")
                yield ShownPage(page, source, url, console)
        finally:
            await console.close()
