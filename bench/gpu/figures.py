"""The measurements of a GPU as figures for the results. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.core.results import Figure, Series, value_of

_ABOUT = "8 B Llama shape, bfloat16, random weights"


def machine_of(head: Mapping[str, Any]) -> dict[str, str]:
    """The device and the versions, as results name a machine."""
    names = ("python", "torch", "cuda", "memory_gib", "processors")
    more = {name: str(head[name]) for name in names if name in head}
    return {"processor": str(head["device"]), **more}


def as_series(
    head: Mapping[str, Any], sections: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Series:
    """Limits, decode steps and prompts; the kernels' rows are in the raw file alone."""
    figures: dict[str, Figure] = {}

    def add(name: str, value: float, unit: str) -> None:
        figures[name] = value_of(value, unit, 1, "runs")

    add("limit: memory read", head["read_gb_s"], "GB/s")
    add("limit: memory copy", head["copy_gb_s"], "GB/s")
    add("limit: matrix product", head["matrix_tflop_s"], "TFLOP/s")
    for row in sections.get("decode", ()):
        title = f"decode, batch {row['batch']} at {row['context']:,} tokens"
        add(f"{title}: step", row["replay_ms"], "ms")
        add(f"{title}: of the bandwidth", row["of_bandwidth"], "of 1")
    for row in sections.get("prefill", ()):
        title = f"prefill, {row['prompt']:,} tokens"
        title += "" if row["chunk"] == row["prompt"] else f" in chunks of {row['chunk']:,}"
        add(f"{title}: pass", row["ms"], "ms")
        add(f"{title}: rate", row["tokens_s"], "tokens/s")
        add(f"{title}: of the matrix rate", row["of_matrix_rate"], "of 1")
    return Series(
        name="gpu",
        commit=str(head["commit"] or "unknown"),
        date=str(head["at"]).partition("T")[0],
        conditions={"model": _ABOUT, "steps": "recorded graphs"},
        figures=figures,
    )
