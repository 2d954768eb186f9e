"""What the pages name is what the code has: settings, keys, metrics, commands."""

from __future__ import annotations

import re
import shlex
import textwrap
from argparse import ArgumentParser

import pytest
import yaml

from cluster.chart.metric_catalogue import all_metrics
from cluster.cli.main import build_parser
from cluster.config.schema import TandemConfig, parse_config
from cluster.reference.cli import commands
from cluster.reference.configuration import keys
from docs.check import Page, read_pages
from tests.helm.test_docs import PAGES as ABOUT_THE_CHART

PAGES = [page for page in read_pages() if page.path.parts[0] in ("README.md", "docs")]
WRITTEN = [page for page in PAGES if not (page.is_decision or page.is_generated)]
# What a node offers of each pool is called as metrics are.
RESOURCES = {"tandem_router", "tandem_prefill", "tandem_decode"}
NAMED = {"endpoints.NAME", "tenants.NAME", "ray.shares.NAME"}
SECTIONS = "|".join(TandemConfig.__dataclass_fields__)


def blocks(page: Page, *languages: str) -> list[str]:
    found = re.findall(
        rf"^ *```(?:{'|'.join(languages)})\n(.*?)^ *```", page.text, re.MULTILINE | re.DOTALL
    )
    return [textwrap.dedent(text) for text in found]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.path))
def test_settings_are_valid(page: Page) -> None:
    if page.path.stem not in ABOUT_THE_CHART:
        for text in blocks(page, "yaml"):
            found = yaml.safe_load(text)
            if "scrape_configs" not in found:  # what is Prometheus's own
                parse_config(found, text)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.path))
def test_keys_are_there(page: Page) -> None:
    known = {key.path for key in keys(TandemConfig)}
    known |= {re.sub(r"\.(prefill|decode)\.", ".NAME.", key) for key in known}
    # The chart has values of its own beside `application`.
    inside = r"application\." if page.path.stem in ABOUT_THE_CHART else ""
    for name in re.findall(rf"`{inside}((?:{SECTIONS})\.[a-zA-Z_.]+[a-z])[:`]", page.text):
        named = re.sub(r"^(endpoints|tenants|ray\.shares)\.\w+\b", r"\1.NAME", name)
        is_file = name.endswith((".py", ".md", ".yaml", ".json"))
        of_the_chart = re.search("[a-z][A-Z]", name)
        assert is_file or of_the_chart or named in known | NAMED, name


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.path))
def test_metrics_are_there(page: Page) -> None:
    declared = {metric.name for metric in all_metrics()} | RESOURCES | {"tandem_client"}
    for name in re.findall(r"`(tandem_[a-z_]+)[{`]", page.text):
        assert name in declared, name


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.path))
def test_commands_parse(page: Page) -> None:
    parser = build_parser()
    known = {name: inner for name, _, inner in commands(parser)}
    for text in blocks(page, "sh", "bash", "text"):
        for line in text.replace("\\\n", " ").splitlines():
            if found := re.search(r"(?:^|-- |\.venv/bin/)tandem (\w[^;&|]*)", line):
                arguments = shlex.split(found.group(1), comments=True)
                assert arguments[0] in known, line
                assert flags(arguments) <= options(known[arguments[0]]), line


def flags(arguments: list[str]) -> set[str]:
    return {argument for argument in arguments if argument.startswith("--")}


def options(parser: ArgumentParser) -> set[str]:
    return set(re.findall(r"(--[a-z-]+)", parser.format_help()))
