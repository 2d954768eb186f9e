"""The rows of a served cluster, as `tandem requests --json` tells them: do their stages add up?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from cluster.telemetry.requests.row import ChoiceRow, RequestRow
from cluster.telemetry.requests.stages import FailoverSpan, stage_faults

_OF_REQUEST = {one.name for one in fields(RequestRow)}
_FIELDS = {one.name for one in fields(ChoiceRow)} - _OF_REQUEST - {"choice"} | {"completion_tokens"}


def faults_told(told: str) -> list[str]:
    """What is wrong with the stages of these rows, which are JSON."""
    return [
        f"{row['request_id']}.{choice.choice}: {fault}"
        for row in json.loads(told)
        for choice in _choices(row)
        for fault in stage_faults(choice)
    ]


def _choices(row: dict[str, Any]) -> Iterator[ChoiceRow]:
    """The choices of a row; a row of one choice has its fields, and one without any has none."""
    if "route" not in row:
        return
    for told in row.get("choices", [row]):
        known = {name: value for name, value in told.items() if name in _FIELDS}
        known["failover_spans"] = tuple(
            FailoverSpan(**one) for one in told.get("failover_spans", ())
        )
        yield ChoiceRow(told.get("choice", 0), **known)
