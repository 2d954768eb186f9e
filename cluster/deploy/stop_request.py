"""The launcher's poll: whether the cluster's end was asked for by a router of the cluster."""

from __future__ import annotations

import asyncio
import logging

from cluster.deploy.embedded_redis import EmbeddedRedis
from cluster.discovery.redis_directory import Directory
from cluster.discovery.request_seal import RequestSeal
from engine.errors import TandemError, Unavailable
from engine.rare_log import RareLog

# Bound: ignored requests are logged so often at most.
_LOG_EVERY_S = 60.0

logger = logging.getLogger(__name__)
_ignored = RareLog(logger, "stop requests without the cluster's secret are ignored", _LOG_EVERY_S)


async def stop_requested(
    directory: Directory, redis: EmbeddedRedis | None, seal: RequestSeal
) -> bool:
    """Whether the cluster's end was asked for. An embedded Redis that died is started anew."""
    if redis is not None and not redis.alive():
        logger.warning("redis-server died and is started anew")
        try:
            await asyncio.to_thread(redis.revive)
        except (TandemError, OSError) as error:
            # Replicas and routers go on without Redis, and the next poll tries again.
            logger.error("redis-server could not be started: %s", error)
            return False
    try:
        request = await directory.listen_for_stop(seal.launcher)
        if request is None or seal.is_stop(request):
            return request is not None
        _ignored.note()
        await directory.drop_stop()
    except Unavailable:
        pass  # replicas and routers ride an outage out, and so does this
    return False
