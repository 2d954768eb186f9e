"""A transport is one file and one line of the registry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.errors import ConfigError
from kv_transfer.config import TransferConfig
from kv_transfer.sender import KvSender
from kv_transfer.transports import registry
from kv_transfer.transports.selection import TransportSide, choose
from tests.kv_transfer.rig import HOST, linked, make_cache, with_transport
from tests.kv_transfer.transports.contract import ChannelContract

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("cluster", "decode_pool", "engine", "kv_transfer", "prefill_pool")
TOY = {"toy": "tests.kv_transfer.transports.toy_channel:ToyChannel"}


@pytest.fixture(autouse=True)
def toy_is_registered(monkeypatch):
    """One line, ahead of all others."""
    monkeypatch.setattr(registry, "TRANSPORTS", TOY | registry.TRANSPORTS)


@pytest.mark.parametrize("channels", ["toy"], indirect=True)
class TestToyContract(ChannelContract):
    """A newly registered transport passes the contract of all transports."""


def test_auto_chooses_a_new_transport_where_its_needs_are_met():
    here = TransportSide("auto", "cpu", "a")
    choice = choose(here, here)
    assert choice.transport == "toy"
    assert choice.why == "both ends are in one process; KV is on the CPU of both ends"
    assert choose(here, TransportSide("auto", "cpu", "b")).transport != "toy"


@pytest.mark.parametrize("configured", ["auto", "toy"])
async def test_a_hand_over_goes_over_a_new_transport(configured, caplog):
    caplog.set_level("INFO", "kv_transfer")
    async with linked(with_transport(configured)) as pair:
        await pair.move("t", [3, 1, 2], [7, 8, 9])
    assert "link to d0 opens by toy" in caplog.text


def test_an_unknown_name_is_refused_with_the_nearest_valid_one():
    with pytest.raises(ConfigError, match=r"kv\.transport: .*'glo'; did you mean gloo\?"):
        KvSender("p0", HOST, make_cache(), TransferConfig(transport="glo"))
    with pytest.raises(ConfigError, match=r"kv\.transport: .*'pigeon'$"):
        KvSender("p0", HOST, make_cache(), TransferConfig(transport="pigeon"))


def test_every_registered_class_is_a_channel_with_its_needs():
    for name, channel in registry.candidates("auto").items():
        assert registry.channel_class(name) is channel
        assert isinstance(channel.lends_memory, bool)
    *_, last = registry.candidates("auto").values()
    assert last.needs == type(last.needs)(), "auto must find a transport for every pair"


def test_no_file_but_its_own_and_the_registry_names_a_transport():
    names = "|".join(name for name in registry.TRANSPORTS if name not in TOY)
    named = re.compile(rf"(?<!\.)\b({names})\b")
    folder = ROOT / "kv_transfer" / "transports"
    own = {path for name in registry.TRANSPORTS for path in folder.glob(f"{name}.py")}
    own |= {path for name in registry.TRANSPORTS for path in folder.glob(f"{name}/*.py")}
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    files.append(ROOT / "protos" / "kv_transfer.proto")
    found = {
        str(path.relative_to(ROOT)): match.group()
        for path in set(files) - own - {folder / "registry.py"}
        if (match := named.search(path.read_text(encoding="utf-8")))
    }
    assert not found
