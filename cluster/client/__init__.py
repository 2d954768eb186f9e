"""The typed gRPC client, the terminal chat and offline batches."""

from cluster.client.grpc_client import (
    Client,
    CompletedChoice,
    Completion,
    Options,
)

__all__ = [
    "Client",
    "CompletedChoice",
    "Completion",
    "Options",
]
