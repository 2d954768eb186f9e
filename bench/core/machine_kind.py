"""The kind of a machine, under which results of equal machines are filed."""

from __future__ import annotations

import re
from collections.abc import Mapping

# AMD's generations by the processor's family; AVX-512 tells the two of family 25 apart.
_ZEN_5, _ZEN_3_OR_4, _ZEN_1_OR_2 = "26", "25", "23"

TITLES: Mapping[str, str] = {
    "zen5": "AMD Zen 5",
    "zen4": "AMD Zen 4",
    "zen3": "AMD Zen 3",
    "zen1-2": "AMD Zen 1 or 2",
    "xeon-amx": "Intel Xeon with AMX",
    "xeon": "Intel Xeon without AMX",
    "h200": "NVIDIA H200",
}


def machine_kind(processor: str) -> str:
    """A short name of a processor (as `describe_machine` says it) or of a GPU, for a file's name.

    The name of an unknown processor is made of its own words.
    """
    flags = re.search(r"\((.*)\)$", processor)
    has = set(flags[1].split()) if flags else set()
    family = re.search(r"family (\d+)", processor)
    if processor.startswith("AMD") and family:
        if family[1] == _ZEN_5:
            return "zen5"
        if family[1] == _ZEN_3_OR_4:
            return "zen4" if "avx512f" in has else "zen3"
        if family[1] == _ZEN_1_OR_2:
            return "zen1-2"
    if "Xeon" in processor:
        return "xeon-amx" if "amx_bf16" in has else "xeon"
    name = processor.removeprefix("NVIDIA").partition("(")[0]
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def title_of(kind: str) -> str:
    """The kind in words."""
    return TITLES.get(kind, kind)
