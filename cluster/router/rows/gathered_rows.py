"""Rows of requests that ended, of this router and of all others, each with its router's name."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from pydantic import TypeAdapter

from cluster.api.limits import LISTED_ROWS
from cluster.console.peer_news import check_row, merged_tenants
from cluster.console.row_view import named, row_view, whole_view
from cluster.console.source import Json
from cluster.console.time_series import WINDOW_S
from cluster.console.ttft_sample import TtftSample
from cluster.router.peers.peer_calls import Peers
from cluster.router.rows.endpoint_figures import figures_of, joined
from cluster.router.rows.gathered_blockers import (
    BAD_ROW,
    GatheredBlockers,
    KnownClocks,
    check_whole,
)
from cluster.router.rows.tenant_figures import busiest, tenants_of
from cluster.telemetry.requests.behind import with_blockers
from cluster.telemetry.requests.row import RequestRow, brief, with_choices
from cluster.telemetry.requests.row_clock import row_clock
from cluster.telemetry.requests.row_order import rank
from cluster.telemetry.requests.store import RequestStore, RowFilter
from protos.peer_pb2 import PeerQuestion, RowsAnswer, RowsQuestion
from protos.router_pb2 import EndpointFigures, ListRequestsRequest, TenantFigures

# Bounds: rows with all their choices in one answer, where a client used an id more than once, and
# first tokens of another router that count for the explanation of rises.
_MOST_WHOLE = 4
_MOST_FIRST_TOKENS = 2000
# Bound: choices in one answer, which takes at most 4 MiB; further requests are without theirs.
_MOST_CHOICES = 1500
# Requests are divided by no less than that.
_LEAST_OBSERVED_S = 1.0
_FIRST_TOKENS = TypeAdapter(list[TtftSample])


@dataclass(frozen=True, slots=True)
class RowList:
    """Rows as they were wanted, and how many are held.

    `first_tokens` are those of the last quarter of an hour, and `figures` those of each endpoint,
    where wanted. So are `tenants`, which may be named once by each router, and their `shares` (see
    `busiest`), and `observed_s`, the seconds of the filter's time that the rows cover. `silent`
    names the routers whose rows are missing, and says why.
    """

    rows: list[Json]
    held: int = 0
    figures: list[EndpointFigures] = field(default_factory=list)
    first_tokens: list[TtftSample] = field(default_factory=list)
    silent: Mapping[str, str] = field(default_factory=dict)
    tenants: list[TenantFigures] = field(default_factory=list)
    shares: Json = field(default_factory=dict)
    observed_s: float = 0.0


class GatheredRows:
    """Lists the rows of this router's memory, and asks the other routers for theirs.

    `shares` tells what tenants use here now.
    """

    def __init__(
        self, store: RequestStore, peers: Peers, shares: Callable[[], Json] = dict
    ) -> None:
        self._store = store
        self._peers = peers
        self._shares = shares
        self.blockers = GatheredBlockers(store, peers)

    async def gather(self, question: RowsQuestion) -> RowList:
        """The rows of all routers that answer, in the order of the filter.

        InvalidRequest for a wrong filter. In a cluster of one router rows name no router. A row by
        its id also has what it waited behind in other routers. Where no router has it, the routers
        that are gone are among the silent ones.
        """
        if not self._peers.others():
            found, known = await self._own(question), KnownClocks()
        else:
            found, known = await self._of_all(question)
        if not question.wanted.request_id:
            return found
        if not found.rows:
            return replace(found, silent=self._peers.gone_since(0.0) | dict(found.silent))
        adding = (self.blockers.added(row, known) for row in found.rows)
        return replace(found, rows=await asyncio.gather(*adding))

    async def _of_all(self, question: RowsQuestion) -> tuple[RowList, KnownClocks]:
        own, answers = await asyncio.gather(
            self._own(question), self._peers.ask_all(PeerQuestion(rows=question))
        )
        silent = dict(answers.silent)
        found = {name: one.rows for name, one in answers.found.items()}
        # A loop over thousands of rows would delay tokens.
        merged = await asyncio.to_thread(_merged, self._peers.name, own, found, silent, question)
        clocks = {name: one for name, one in answers.clocks.items() if name not in silent}
        return merged, KnownClocks(clocks, silent)

    async def answer(self, question: RowsQuestion) -> RowsAnswer:
        """The rows of this router alone, for another router; InvalidRequest for a wrong filter."""
        own = await self._own(question)
        first_tokens = own.first_tokens[-_MOST_FIRST_TOKENS:]
        return await asyncio.to_thread(
            lambda: RowsAnswer(
                rows=map(json.dumps, own.rows),
                held=own.held,
                figures=own.figures,
                tenants=own.tenants,
                observed_s=own.observed_s,
                shares=json.dumps(own.shares).encode() if own.shares else b"",
                first_tokens=_FIRST_TOKENS.dump_json(first_tokens) if first_tokens else b"",
            )
        )

    async def _own(self, question: RowsQuestion) -> RowList:
        wanted, rows = filter_of(question.wanted), list(self._store)
        terminal = _WITH_CHOICES if question.wanted.choices else _FOR_TERMINALS
        form = _FOR_CONSOLE if question.for_console else terminal
        running = self._store.running() if wanted.request_id else []
        listed = await asyncio.to_thread(_listed, wanted, rows, running, form)
        first_tokens: list[TtftSample] = []
        if question.wanted.rises:
            first_tokens = await asyncio.to_thread(_first_tokens, rows)
        found = RowList(listed, len(rows), first_tokens=first_tokens)
        if not question.wanted.figures:
            return found
        figures, tenants = await asyncio.to_thread(_figures, wanted, rows)
        return replace(
            found,
            figures=figures,
            tenants=tenants,
            shares=self._shares(),
            observed_s=_observed_s(wanted, row_clock() - self._store.since),
        )


def rows_question(wanted: RowFilter, *, for_console: bool = False) -> RowsQuestion:
    """The question for the rows that a filter chooses."""
    return RowsQuestion(wanted=ListRequestsRequest(**asdict(wanted)), for_console=for_console)


def filter_of(wire: ListRequestsRequest) -> RowFilter:
    """The filter of a request; raises InvalidRequest."""
    return RowFilter(
        wire.request_id,
        wire.endpoint,
        wire.tenant,
        wire.failed,
        wire.since_s,
        wire.slowest,
        wire.limit,
        wire.answered,
    )


# The form of a row in a list, and of a row with all its choices.
_Rows = Sequence[RequestRow]
_Forms = tuple[Callable[[RequestRow], Json], Callable[[RequestRow, _Rows, _Rows], Json]]
_FOR_CONSOLE: _Forms = (row_view, whole_view)
_FOR_TERMINALS: _Forms = (brief, with_blockers)
_WITH_CHOICES: _Forms = (with_choices, with_blockers)


def _figures(wanted: RowFilter, rows: _Rows) -> tuple[list[EndpointFigures], list[TenantFigures]]:
    chosen = replace(wanted, answered=False).chosen(rows)
    return figures_of(chosen), tenants_of(chosen)


def _observed_s(wanted: RowFilter, held_s: float) -> float:
    """The seconds that the rows of the filter cover, where all of the last `held_s` are held."""
    return max(_LEAST_OBSERVED_S, min(held_s, wanted.since_s or held_s))


def _listed(wanted: RowFilter, rows: _Rows, running: _Rows, forms: _Forms) -> list[Json]:
    """The chosen rows; a request that is asked for by its id and has not ended is one, too."""
    found, (short, full) = wanted.of(rows) or wanted.of(running), forms
    if not wanted.request_id:
        return _within_bound([short(row) for row in found])
    return [full(row, rows, running) for row in found[:_MOST_WHOLE]]


def _within_bound(rows: list[Json]) -> list[Json]:
    """The rows, less the choices of those for which an answer has no room."""
    left = _MOST_CHOICES
    for row in rows:
        count = len(row.get("choices", ()))
        if count > left:
            del row["choices"]
        else:
            left -= count
    return rows


def _first_tokens(rows: Sequence[RequestRow]) -> list[TtftSample]:
    since = row_clock() - WINDOW_S
    samples = (TtftSample.of_row(row) for row in rows if row.received_at >= since)
    return [one for one in samples if one is not None]


def _check_rows(rows: list[Json], *, slowest: bool, whole: bool) -> None:
    """Read the rows of another router once; raises one of BAD_ROW."""
    for row in rows:
        check_row(row)
        if not math.isfinite(rank(row, slowest=slowest)):
            raise ValueError("a time that is not finite")
        if whole:
            check_whole(row)
        elif "choices" in row:
            len(row["choices"])


def _merged(
    name: str,
    own: RowList,
    answers: Mapping[str, RowsAnswer],
    silent: dict[str, str],
    question: RowsQuestion,
) -> RowList:
    """The rows of this router and the readable answers of the others."""
    rows, held = [named(row, name) for row in own.rows], own.held
    first_tokens, figures = list(own.first_tokens), [own.figures]
    tenants, shares, observed_s = list(own.tenants), own.shares, own.observed_s
    slowest = question.wanted.slowest
    for router, answer in answers.items():
        try:
            theirs = [named(json.loads(row), router) for row in answer.rows]
            _check_rows(theirs, slowest=slowest, whole=bool(question.wanted.request_id))
            samples = []
            if answer.first_tokens:
                samples = _FIRST_TOKENS.validate_json(answer.first_tokens)
            if not all(one.sound for one in samples):
                raise ValueError("first tokens that cannot be counted")
            both = merged_tenants(shares, [json.loads(answer.shares or b"{}")])
            busiest(answer.tenants, both)
        except BAD_ROW:
            silent[router] = "its rows cannot be read"
            continue
        first_tokens += samples
        rows += theirs
        held += answer.held
        figures.append(list(answer.figures))
        tenants, shares = [*tenants, *answer.tenants], both
        observed_s = max(observed_s, answer.observed_s or question.wanted.since_s)
    rows.sort(key=lambda row: -rank(row, slowest=slowest))
    most = question.wanted.limit or LISTED_ROWS
    if question.wanted.request_id:
        rows = rows[: min(most, _MOST_WHOLE)]
    else:
        rows = _within_bound(rows[:most])
    known = first_tokens, silent, tenants, shares, observed_s
    return RowList(rows, held, joined(figures), *known)
