"""The generated pages have all that the code has."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

from cluster.admission.policy import Reason
from cluster.admission.refusal_reasons import REASONS
from cluster.cli.main import build_parser
from cluster.config.schema import TandemConfig
from cluster.reference.cli import commands, options
from cluster.reference.configuration import Key, keys
from cluster.reference.errors import tree
from cluster.reference.markdown import table
from cluster.reference.pages import PAGES, stale_pages, write_pages

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (
    *("cluster", "decode_pool", "engine", "kv_transfer", "prefill_pool", "protos"),
    "tandem_client",
)
# Told apart by the router where it counts a refusal that is no verdict of the policy.
COUNTED_ELSEWHERE = {"router_full", "replica_full"}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_title_and_no_empty_meaning(name: str) -> None:
    text = PAGES[name]()
    assert text.startswith("# ")
    assert "|  |\n" not in text


def test_what_was_written_is_not_stale_until_it_changes(tmp_path: Path) -> None:
    assert stale_pages(tmp_path) == list(PAGES)
    write_pages(tmp_path)
    assert stale_pages(tmp_path) == []
    (tmp_path / "cli.md").write_text("# Other\n")
    assert stale_pages(tmp_path) == ["cli.md"]


def test_keys_have_their_path_type_default_and_unit() -> None:
    found = {key.path: key for key in keys(TandemConfig)}
    assert found["kv.lease_s"].unit == "seconds"
    assert found["decode.itl_budget_ms"].unit == "milliseconds"
    assert found["router.max_message_bytes"].unit == "bytes"
    assert found["kv.blocks"].type == "integer, or null"
    assert found["kv.blocks"].default == "none"
    assert found["endpoints.NAME.canary.endpoint"].default is None
    assert found["ray.shares.NAME.resources"].type == "mapping of number by name"
    assert found["kv.prefix_cache"] == Key(
        "kv.prefix_cache", "true or false", "`true`", found["kv.prefix_cache"].meaning
    )


def test_every_reason_has_a_line() -> None:
    assert REASONS.keys() == {*get_args(Reason), *COUNTED_ELSEWHERE}


def test_every_error_of_the_product_is_in_the_tree() -> None:
    known = {kind.__name__ for _, kind in tree()}
    classes = [
        node
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    below = {c.name for c in classes if {ast.unparse(base) for base in c.bases} & known}
    assert below | {"TandemError"} == known


def test_every_argument_says_what_it_does() -> None:
    parser = build_parser()
    silent = [
        f"{command} {action.dest}"
        for command, _, inner in commands(parser)
        for action in options(inner)
        if not action.help
    ]
    assert silent == []


def test_a_cell_keeps_its_bars_and_lines() -> None:
    assert table(("a", "b"), [("x|y", "two\nlines")]) == (
        "| a | b |\n| --- | --- |\n| x\\|y | two lines |\n"
    )
