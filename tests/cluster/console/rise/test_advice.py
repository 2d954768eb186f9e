"""What to do about a rise: right for its cause, with keys, commands and pages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.admission.refusal_reasons import REASONS
from cluster.console.rise.advice import advice_of
from cluster.console.rise.cause import RiseCause

ROOT = Path(__file__).resolve().parents[4]
KEYS = (ROOT / "docs/reference/configuration.md").read_text()
COMMANDS = (ROOT / "docs/reference/cli.md").read_text()
STAGES = ("admission", "failover", "prefill_queue", "prefill", "first_flush")
CAUSES = [
    RiseCause((stage,), pool, replica, tenant, reason, capped=capped, fresh=fresh)
    for stage in STAGES
    for pool in ("prefill", "decode", "router")
    for replica in ("", "prefill-0")
    for tenant in ("", "acme", "default")
    for reason in ("", *REASONS)
    for capped in ("", "acme")
    for fresh in (False, True)
]


def advised(stage="prefill_queue", pool="prefill", *, longer_prompts=False, **more):
    return advice_of(RiseCause((stage,), pool, **more), longer_prompts=longer_prompts)


@pytest.mark.parametrize("longer_prompts", [False, True])
def test_every_page_key_and_command_exists(longer_prompts):
    texts, pages = set(), set()
    for cause in CAUSES:
        advice = advice_of(cause, longer_prompts=longer_prompts)
        texts.add(advice.text)
        pages.add(advice.runbook)
    for page in pages:
        name, _, anchor = page.partition("#")
        headings = re.findall(r"^#+ (.*)", (ROOT / name).read_text(), re.M)
        anchors = {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}
        assert not anchor or anchor in anchors, page
    for text in texts:
        assert text.endswith(".")
        for code in re.findall(r"`([^`]+)`", text):
            key = re.sub(r"^tenants\.\w+", "tenants.NAME", code)
            key = re.sub(r"^scaling\.NAME\.min: 1", "scaling.decode.min", key)
            known = f"{key}`" in KEYS or f"`{code}`" in COMMANDS or f"## {code}\n" in COMMANDS
            assert known, (code, text)


def test_a_slow_replica_is_drained_and_a_lost_one_explained():
    slow = advised("prefill", replica="prefill-0", tenant="acme", reason="ttft")
    assert "Drain the replica" in slow.text and "tandem restart" in slow.text
    assert slow.runbook == "docs/howto/drain-and-restart.md"
    lost = advised("failover", replica="prefill-0")
    assert "log of prefill-0" in lost.text and "Drain" not in lost.text


def test_a_tenant_that_sent_more_gets_the_cap_that_helps():
    assert "`tenants.acme.max_concurrent`" in advised(tenant="acme").text
    full = advised("admission", "decode", tenant="acme", reason="kv_blocks")
    assert "`tenants.acme.max_kv_tokens`" in full.text and "more `kv.blocks`" in full.text
    assert "keys" in advised(tenant="default").text


def test_without_a_tenant_the_pool_that_lacks_gets_more():
    assert "more prefill replicas" in advised().text
    assert "more prefill replicas" in advised("prefill", longer_prompts=True).text
    assert "more decode replicas" in advised("admission", "decode", reason="decode_batch").text
    assert "`tandem doctor`" in advised("prefill").text
    assert "`router.replicas`" in advised("admission", "router").text


def test_a_cap_that_holds_a_tenant_back_is_raised():
    for reason, cap in (("tenant_concurrent", "max_concurrent"), ("tenant_kv", "max_kv_tokens")):
        found = advised("admission", "router", tenant="acme", capped="acme", reason=reason)
        assert f"raise `tenants.acme.{cap}`" in found.text
