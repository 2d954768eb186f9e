"""Options of all gRPC channels within a cluster."""

from __future__ import annotations

# gRPC would use the proxy in `http_proxy`, which is for addresses outside the cluster.
DIRECT = ("grpc.enable_http_proxy", 0)
