"""What all channels between the parts of a cluster have in common."""

from __future__ import annotations

# gRPC would take the way that `http_proxy` names, which is for the world outside.
DIRECT = ("grpc.enable_http_proxy", 0)
