"""TTFT, ITL, refusals and served tokens over the last quarter of an hour, in steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cluster.telemetry.requests.itl import rank

# The chart's time, and the time of one point.
WINDOW_S = 900.0
STEP_S = 10.0
# Bounds: values of one point from which quantiles are taken; endpoints and tenants told apart.
_MOST_VALUES = 512
_MOST_ENDPOINTS = 16
_MOST_TENANTS = 64
_OTHERS = "other"
Point = dict[str, Any]


@dataclass(slots=True)
class _Values:
    """The last values of one measure in one step."""

    kept: list[float] = field(default_factory=list)
    count: int = 0

    def add(self, value: float) -> None:
        if len(self.kept) < _MOST_VALUES:
            self.kept.append(value)
        else:
            self.kept[self.count % _MOST_VALUES] = value
        self.count += 1

    def quantile(self, share: float) -> float | None:
        if not self.kept:
            return None
        return _rounded(rank(sorted(self.kept), share))


@dataclass(slots=True)
class _SeriesStep:
    """One endpoint in one step; `longest_itl_s` is one value of all streams."""

    ttft: _Values = field(default_factory=_Values)
    itl: _Values = field(default_factory=_Values)
    longest_itl_s: float = 0.0
    ended: int = 0
    failed: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    def point(self) -> Point:
        return {
            "ttft": [self.ttft.quantile(0.5), self.ttft.quantile(0.95)],
            "itl": [self.itl.quantile(0.5), self.itl.quantile(0.95), self._longest],
            "first_tokens": self.ttft.count,
            "ended": self.ended,
            "failed": self.failed,
            "refused": dict(self.refused),
        }

    def add_itl(self, values: Sequence[float], longest_s: float) -> None:
        for value in values:
            self.itl.add(value)
        self.longest_itl_s = max(self.longest_itl_s, longest_s)

    @property
    def _longest(self) -> float | None:
        return _rounded(self.longest_itl_s) if self.itl.count else None


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


@dataclass(slots=True)
class _TenantStep:
    """The requests of a tenant that ended in one step; the refused ones are among them."""

    tokens: int = 0
    requests: int = 0
    refused: int = 0

    def add(self, other: _TenantStep) -> None:
        self.tokens += other.tokens
        self.requests += other.requests
        self.refused += other.refused


class TimeSeries:
    """Steps of `STEP_S`, by endpoint. Times are in seconds since the epoch."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, _SeriesStep]] = {}
        self._changed: set[int] = set()
        self._endpoints: set[str] = set()
        self._tenants: dict[int, dict[str, _TenantStep]] = {}

    def first_token(self, at: float, endpoint: str, ttft_s: float) -> None:
        """Count a first token that came at that time."""
        self._step(at, endpoint).ttft.add(ttft_s)

    def itl(self, at: float, endpoint: str, values: Sequence[float], longest_s: float) -> None:
        """Count the ITL of streams that run at that time, and the longest one of them."""
        self._step(at, endpoint).add_itl(values, longest_s)

    def ended(
        self, at: float, endpoint: str, itl_s: float | None, longest_s: float, *, failed: bool
    ) -> None:
        """Count a request that ended, with its ITL where that was not counted while it ran.

        A request that fails may name any endpoint, so its name takes no place from others.
        """
        is_known = endpoint in self._endpoints or not failed
        step = self._step(at, endpoint if is_known else _OTHERS)
        step.ended += 1
        step.failed += failed
        if itl_s is not None:
            step.add_itl((itl_s,), longest_s)

    def refused(self, at: float, endpoint: str, reason: str) -> None:
        """Count a refusal."""
        refused = self._step(at, endpoint).refused
        refused[reason] = refused.get(reason, 0) + 1

    def served(self, at: float, tenant: str, tokens: int) -> None:
        """Count a request that ended, and its tokens, of prompt and answer."""
        self._of_tenant(at, tenant).add(_TenantStep(tokens, 1, 0))

    def tenant_refused(self, at: float, tenant: str) -> None:
        """Count a request of a tenant that was refused."""
        self._of_tenant(at, tenant).add(_TenantStep(0, 1, 1))

    def by_tenant(self) -> dict[str, dict[str, int]]:
        """The tokens, requests and refused ones of the busiest tenants, and then of all others."""
        sums: dict[str, _TenantStep] = {}
        for tenants in self._tenants.values():
            for tenant, one in tenants.items():
                sums.setdefault(tenant, _TenantStep()).add(one)
        rest = sums.pop(_OTHERS, _TenantStep())
        ranked = sorted(sums.items(), key=lambda item: (-item[1].tokens, -item[1].requests))
        for _, one in ranked[_MOST_TENANTS:]:
            rest.add(one)
        found = {name: asdict(one) for name, one in ranked[:_MOST_TENANTS]}
        return found | ({_OTHERS: asdict(rest)} if rest.requests else {})

    def forget(self, now: float) -> None:
        """Forget what is older than the window."""
        oldest = int((now - WINDOW_S) // STEP_S)
        for number in [number for number in self._steps if number < oldest]:
            del self._steps[number]
        for number in [number for number in self._tenants if number < oldest]:
            del self._tenants[number]
        self._changed &= self._steps.keys()

    def all(self) -> dict[str, dict[str, Point]]:
        """Every point, by the time at which its step begins and by endpoint."""
        return {str(int(number * STEP_S)): self._points(number) for number in sorted(self._steps)}

    def changes(self) -> dict[str, dict[str, Point]]:
        """The points that changed since the last call."""
        changed, self._changed = sorted(self._changed), set()
        return {str(int(number * STEP_S)): self._points(number) for number in changed}

    def _points(self, number: int) -> dict[str, Point]:
        return {name: step.point() for name, step in self._steps[number].items()}

    def _of_tenant(self, at: float, tenant: str) -> _TenantStep:
        tenants = self._tenants.setdefault(int(at // STEP_S), {})
        if tenant not in tenants and len(tenants) >= _MOST_TENANTS:
            tenant = _OTHERS
        return tenants.setdefault(tenant, _TenantStep())

    def _step(self, at: float, endpoint: str) -> _SeriesStep:
        if endpoint not in self._endpoints and endpoint != _OTHERS:
            if len(self._endpoints) < _MOST_ENDPOINTS:
                self._endpoints.add(endpoint)
            else:
                endpoint = _OTHERS
        number = int(at // STEP_S)
        self._changed.add(number)
        return self._steps.setdefault(number, {}).setdefault(endpoint, _SeriesStep())
