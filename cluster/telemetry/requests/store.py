"""The last rows of a router, in memory, and the choice among them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from cluster.api.limits import LISTED_ROWS, MAX_LISTED_ROWS
from cluster.api.validation import check_name, check_request_id
from cluster.telemetry.requests.row import RequestRow
from cluster.telemetry.requests.row_clock import row_clock
from engine.errors import InvalidRequest

MOST_ROWS = 10_000
# Bound: choices of all rows, since a request may have many. A choice takes about 1 KB.
_CHOICES_A_ROW = 4
_LEAST_CHOICES = 2
# What a front end's answer writes before the id of its request.
_ANSWER_PREFIX = re.compile(r"\A(?:chatcmpl-|cmpl-|msg_|resp_)")
# What a call with several prompts writes behind the id, for each of them.
_PROMPT_SUFFIX = re.compile(r"-[0-9]{1,5}\Z")


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows are listed; empty and zero fields choose all. Raises InvalidRequest.

    The newest come first, or with `slowest` the longest TTFT; where no token came, the whole time
    counts. `since_s` chooses requests that arrived in the last so many seconds, `answered` requests
    that got a token. Where no row has `request_id`, the client's `X-Request-Id` chooses its
    requests, the id of an answer its request, and the id of a call with several prompts the rows of
    all of them, `ID-0`, `ID-1` and so on.
    """

    request_id: str = ""
    endpoint: str = ""
    tenant: str = ""
    failed: bool = False
    since_s: float = 0.0
    slowest: bool = False
    limit: int = 0
    answered: bool = False

    def __post_init__(self) -> None:
        check_row_id(self.request_id)
        check_name(self.endpoint, "endpoint")
        check_name(self.tenant, "tenant")
        if not (math.isfinite(self.since_s) and self.since_s >= 0):
            raise InvalidRequest("since_s must be a number of seconds", field="since_s")
        if not 0 <= self.limit <= MAX_LISTED_ROWS:
            raise InvalidRequest(f"limit must be at most {MAX_LISTED_ROWS}", field="limit")

    def of(self, rows: Iterable[RequestRow], now: float | None = None) -> list[RequestRow]:
        """The first `limit` of the chosen rows, in their order."""
        found = self.chosen(rows, now)
        found.reverse()
        if self.slowest:
            found.sort(key=lambda row: -(row.ttft_s or row.total_s or 0.0))
        return found[: self.limit or LISTED_ROWS]

    def chosen(self, rows: Iterable[RequestRow], now: float | None = None) -> list[RequestRow]:
        """The chosen ones of `rows`, in the order of their ends, which is that of `rows`.

        `now` is a time of `row_clock`, the clock of `received_at`.
        """
        since = 0.0
        if self.since_s:
            since = (row_clock() if now is None else now) - self.since_s
        found = [row for row in rows if self._takes(row) and row.received_at >= since]
        return _named(found, self.request_id) if self.request_id else found

    def _takes(self, row: RequestRow) -> bool:
        return (
            (not self.endpoint or row.endpoint == self.endpoint)
            and (not self.tenant or row.tenant == self.tenant)
            and (row.failed or not self.failed)
            and (row.ttft_s is not None or not self.answered)
        )


def check_row_id(name: str) -> str:
    """Return `name` if it is empty, or can be the id of a row or an answer; raises InvalidRequest.

    Both may be longer than the id that a client gave.
    """
    check_request_id(_PROMPT_SUFFIX.sub("", _ANSWER_PREFIX.sub("", name)))
    return name


def _named(rows: list[RequestRow], name: str) -> list[RequestRow]:
    """The rows with that request id, or else with that `X-Request-Id`.

    Without either, the rows of the answer with that id, or of a call with several prompts.
    """
    if exact := [row for row in rows if row.request_id == name]:
        return exact
    if called := [row for row in rows if row.x_request_id == name]:
        return called
    request_id = _ANSWER_PREFIX.sub("", name)
    of_it = re.compile(rf"{re.escape(request_id)}(?:-\d+)?")
    return [row for row in rows if of_it.fullmatch(row.request_id)]


class RequestStore:
    """Holds at most `most` rows; the oldest leave first.

    Of more than four times as many choices, the oldest rows keep two each: the one whose first
    token came last, and the one whose last token did. `running` makes the rows of the requests
    that have not ended, as far as they came. It holds rows from `since` on, a time of `row_clock`;
    None: from now on.
    """

    def __init__(self, most: int = MOST_ROWS, since: float | None = None) -> None:
        self.running: Callable[[], list[RequestRow]] = list
        self._most = most
        self._since = row_clock() if since is None else since
        self._rows: dict[int, RequestRow] = {}
        self._choices = 0
        self._last = 0
        # Up to this row all have at most two choices.
        self._trimmed = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[RequestRow]:
        """The rows in the order of their ends; what is added meanwhile is not among them."""
        return iter(list(self._rows.values()))

    def add(self, row: RequestRow) -> int:
        """Hold a row; returns its number."""
        self._last += 1
        self._rows[self._last] = row
        self._choices += len(row.choices)
        while len(self._rows) > self._most:
            gone = self._rows.pop(next(iter(self._rows)))
            self._choices -= len(gone.choices)
            self._since = max(self._since, gone.received_at + (gone.total_s or 0.0))
        while self._choices > _CHOICES_A_ROW * self._most and self._trimmed < self._last:
            self._trimmed += 1
            self._trim(self._trimmed)
        return self._last

    def _trim(self, number: int) -> None:
        row = self._rows.get(number)
        if row is not None and len(row.choices) > _LEAST_CHOICES:
            last = max(row.choices, key=lambda one: one.ttlt_s or 0.0)
            kept = tuple(one for one in row.choices if one is last or one is row.slowest)
            self._choices -= len(row.choices) - len(kept)
            self._rows[number] = replace(row, choices=kept)

    @property
    def since(self) -> float:
        """Every request that ended later is held; a time of `row_clock`."""
        return self._since

    @property
    def last(self) -> int:
        """The number of the row that was added last; 0 before the first one."""
        return self._last

    def after(self, number: int) -> list[RequestRow]:
        """The rows that were added behind the row of that number, in the order of their ends."""
        newest = islice(reversed(self._rows.values()), max(0, self._last - number))
        return list(newest)[::-1]

    def get(self, number: int) -> RequestRow | None:
        """The row of that number, if it is still held."""
        return self._rows.get(number)

    def exchange(self, number: int, row: RequestRow) -> None:
        """Hold this row in the place of another one of as many choices; only if that is held."""
        if number in self._rows:
            self._rows[number] = row

    def vacated(self, number: int, seconds: float) -> None:
        """Note the time after which a cancelled request's last replica had freed its blocks."""
        row = self._rows.get(number)
        if row is not None:
            longest_s = max(seconds, row.time_to_cancel_s or 0.0)
            self._rows[number] = replace(row, time_to_cancel_s=longest_s)
