"""The typed gRPC client, and the chat on a terminal."""

from cluster.client.grpc_client import Client, CompletedChoice, Completion
from cluster.client.inputs import Options
from cluster.client.router_address import RouterAddress

__all__ = [
    "Client",
    "CompletedChoice",
    "Completion",
    "Options",
    "RouterAddress",
]
