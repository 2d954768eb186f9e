"""The typed gRPC client, and the chat on a terminal."""

from tandem_client.grpc_client import Client, CompletedChoice, Completion
from tandem_client.inputs import Options
from tandem_client.router_address import RouterAddress

__all__ = [
    "Client",
    "CompletedChoice",
    "Completion",
    "Options",
    "RouterAddress",
]
