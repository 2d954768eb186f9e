"""The labels of a request in the metrics: its endpoint, lane and tenant, within a bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cluster.api import GenerateRequest
from cluster.api.validation import is_tenant
from cluster.config.endpoint_lookup import endpoint_of, lane_of
from cluster.config.endpoints import EndpointConfig
from engine.kv.prefix_digest import DEFAULT_TENANT

OTHER = "other"
Labels = Mapping[str, str]


class RequestLabels:
    """Gives each request its labels; clients cannot make more labels than the bound.

    An endpoint that is not configured is `other`, in the lane `other`. The tenants with a label
    are `default`, the configured ones, and then others as they come, `most_tenants` in all.
    """

    def __init__(
        self,
        endpoints: Mapping[str, EndpointConfig],
        default_endpoint: str,
        tenants: Iterable[str],
        most_tenants: int,
    ) -> None:
        self._endpoints = endpoints
        self._default = default_endpoint
        known = dict.fromkeys((DEFAULT_TENANT, *tenants))
        self._tenants = set(list(known)[:most_tenants])
        self._most_tenants = most_tenants

    def of(self, request: GenerateRequest, tenant: str) -> Labels:
        """The values of `router_metrics.REQUEST` by name. The request counts for `tenant`."""
        name = endpoint_of(request, self._endpoints, self._default)
        endpoint = self._endpoints.get(name)
        return {
            "endpoint": OTHER if endpoint is None else name,
            "lane": OTHER if endpoint is None else lane_of(request, endpoint),
            "tenant": self._tenant(tenant),
        }

    def _tenant(self, name: str) -> str:
        if name not in self._tenants:
            if len(self._tenants) >= self._most_tenants or not is_tenant(name):
                return OTHER
            self._tenants.add(name)
        return name
