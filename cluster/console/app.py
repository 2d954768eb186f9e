"""The console's paths for the HTTP front end.

| path | what it is | key, where keys are configured |
|---|---|---|
| `GET /`, `/console`, `/console/NAME` | the page and its files | none |
| `GET /console/feed` | the event stream | an operator's |
| `GET /console/requests`, `/console/request`, `/console/configuration` | JSON | an operator's |
| `POST /console/stop`, `/console/drain`, `/console/kill` | an operator's acts | an operator's |

An act always needs an operator's key, also where no keys are configured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from cluster.api.limits import MAX_NAME_CHARACTERS
from cluster.api.validation import check_name
from cluster.console.feed import ConsoleFeed
from cluster.console.model import ConsoleModel
from cluster.console.source import ConsoleActions, ConsoleSource, ReplicaEnd, unanswered
from cluster.console.static_files import HEADERS, answer_with
from cluster.gateway.answers.failures import Endpoint, answering, failed, json_answer
from cluster.gateway.sse import EventStream
from cluster.telemetry.requests.store import RowFilter, check_row_id
from cluster.tenants.api_keys import ApiKeys, authorization_of
from engine.errors import InvalidRequest, NotFound, shown

# Bound: how long a page may read nothing before its stream ends.
_STALL_S = 5.0
_MOST_ROWS = 200
_FILTER = ("endpoint", "tenant", "failed", "slowest", "since_s", "limit")


class Console:
    """The console of one router. `keys` open the view, None where all may look.

    `operators` are the keys of those who may act.
    """

    def __init__(
        self,
        source: ConsoleSource,
        actions: ConsoleActions,
        keys: ApiKeys | None,
        operators: ApiKeys,
    ) -> None:
        self._source = source
        self._actions = actions
        self._keys = keys
        self._operators = operators
        self.feed = ConsoleFeed(ConsoleModel(source))

    def routes(self) -> list[BaseRoute]:
        """The routes of the HTTP front end."""
        reads = {
            "/": self.root,
            "/console": self.page,
            "/console/feed": self.stream,
            "/console/requests": self.requests,
            "/console/request": self.request,
            "/console/configuration": self.configuration,
            "/console/{name}": self.file,
        }
        acts: dict[str, Endpoint] = {
            "/console/stop": self.stop,
            "/console/drain": partial(self.end_replica, "drain"),
            "/console/kill": partial(self.end_replica, "kill"),
        }
        return [
            *(Route(path, answering(one), methods=["POST"]) for path, one in acts.items()),
            *(Route(path, answering(one), methods=["GET"]) for path, one in reads.items()),
        ]

    async def close(self) -> None:
        """End the streams of all pages."""
        await self.feed.close()
        await self._source.close()

    async def root(self, request: Request) -> Response:
        """To the page, for browsers; NotFound for all others, as on any unknown path."""
        if "text/html" not in request.headers.get("accept", ""):
            raise NotFound("Not Found: GET /")
        return RedirectResponse("console", 307)

    async def page(self, request: Request) -> Response:
        """The page."""
        return answer_with("index.html", request.headers.get("if-none-match"))

    async def file(self, request: Request) -> Response:
        """A file of the page."""
        return answer_with(request.path_params["name"], request.headers.get("if-none-match"))

    async def stream(self, request: Request) -> Response:
        """The feed."""
        self._check_view(request)
        _only(request, ())
        if request.method == "HEAD":
            return Response(headers=HEADERS, media_type="text/event-stream")
        events = self.feed.watch(partial(self._check_view, request))
        return EventStream(events, HEADERS, _STALL_S, partial(failed, request))

    async def requests(self, request: Request) -> Response:
        """Requests that ended, as the query chooses them."""
        self._check_view(request)
        query = _only(request, _FILTER)
        limit = min(_MOST_ROWS, int(_number(query, "limit", _MOST_ROWS)))
        wanted = RowFilter(
            endpoint=query.get("endpoint", ""),
            tenant=query.get("tenant", ""),
            failed=_flag(query, "failed"),
            slowest=_flag(query, "slowest"),
            since_s=_number(query, "since_s", 0.0),
            limit=limit,
        )
        found = await self._source.listed(wanted)
        answer = {"router": self._source.name, "rows": found.rows, "silent": found.silent}
        return json_answer(answer, headers=HEADERS)

    async def request(self, request: Request) -> Response:
        """All of one request: of one that ended, or else of one that runs."""
        self._check_view(request)
        query = _only(request, ("id", "tenant"))
        request_id = _required(query.get("id", ""), "id")
        wanted = RowFilter(request_id=request_id, tenant=query.get("tenant", ""), limit=1)
        found = await self._source.listed(wanted)
        if not found.rows:
            raise NotFound(
                f"no request {shown(request_id)} runs or is remembered" + unanswered(found.silent)
            )
        return json_answer(found.rows[0], headers=HEADERS)

    async def configuration(self, request: Request) -> Response:
        """The configuration in force."""
        self._check_view(request)
        _only(request, ())
        return json_answer(self._source.configuration(), headers=HEADERS)

    async def stop(self, request: Request) -> Response:
        """Stop a request that runs."""
        operator = self._operators.operator(authorization_of(request.headers.get))
        query = _only(request, ("id", "tenant"))
        request_id = check_row_id(_required(query.get("id", ""), "id"))
        tenant = check_name(_required(query.get("tenant", ""), "tenant"), "tenant")
        await self._actions.stop_request(request_id, tenant, operator)
        return json_answer({"stopped": request_id}, headers=HEADERS)

    async def end_replica(self, how: ReplicaEnd, request: Request) -> Response:
        """Drain or kill a replica."""
        operator = self._operators.operator(authorization_of(request.headers.get))
        query = _only(request, ("replica",))
        replica = check_name(_required(query.get("replica", ""), "replica"), "replica")
        await self._actions.end_replica(replica, how, operator)
        return json_answer({"replica": replica, "asked": how}, headers=HEADERS)

    def _check_view(self, request: Request) -> None:
        if self._keys is not None:
            self._operators.operator(authorization_of(request.headers.get))


def _only(request: Request, names: Sequence[str]) -> Mapping[str, str]:
    """The query's fields; raises InvalidRequest for an unknown, repeated or long one."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in names:
            raise InvalidRequest(f"there is no field {shown(name)} here")
        if name in found:
            raise InvalidRequest(f"{name} stands there twice", field=name)
        if len(value) > MAX_NAME_CHARACTERS:
            raise InvalidRequest(f"{name} is too long", field=name)
        found[name] = value
    return found


def _required(value: str, name: str) -> str:
    if not value:
        raise InvalidRequest(f"{name} is missing", field=name)
    return value


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} must be true or false", field=name)
    return value == "true"


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and len(text) <= 16):
        raise InvalidRequest(f"{name} must be a number", field=name)
    return float(text)
