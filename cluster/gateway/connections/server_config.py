"""The configuration of uvicorn, with the registry that its connections share."""

from __future__ import annotations

from typing import Any

import uvicorn

from cluster.gateway.connections.registry import ConnectionRegistry


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration. It is what uvicorn hands to each connection."""

    def __init__(self, *options: Any, registry: ConnectionRegistry, **named: Any) -> None:
        super().__init__(*options, **named)
        self.registry = registry
