"""The console's view of a whole cluster: this router, and what the other routers tell."""

from __future__ import annotations

from cluster.console.peer_news import PeersTold, merged_tenants
from cluster.console.source import Json, Listing, RunningView
from cluster.router.console.view import RouterView, most_served
from cluster.router.peers.news_following import FollowedNews
from cluster.router.rows.gathered_rows import GatheredRows, rows_question
from cluster.telemetry.requests.store import RowFilter


class ClusterView:
    """Implements `cluster.console.source.ConsoleSource` over all routers."""

    def __init__(self, own: RouterView, followed: FollowedNews, rows: GatheredRows) -> None:
        self.name = own.name
        self.rows = own.rows
        self._own = own
        self._followed = followed
        self._gathered = rows

    def running(self) -> list[RunningView]:
        """The requests that run in this router."""
        return self._own.running()

    def peers(self) -> PeersTold:
        """What the other routers told since the last call."""
        return self._followed.look()

    def state(self) -> Json:
        """The state of this router, with the use of caps of all, and who of them answers."""
        own = self._own.state()
        latest = self._followed.latest().values()
        if latest:
            merged = merged_tenants(own["tenants"], [one.tenants for one in latest])
            own["tenants"] = most_served(merged)
        return own | {"routers": self._followed.routers()}

    async def cluster(self) -> Json:
        """What the directory says of the cluster; raises Unavailable."""
        return await self._own.cluster()

    def configuration(self) -> Json:
        """The configuration in force, without secrets."""
        return self._own.configuration()

    async def listed(self, wanted: RowFilter) -> Listing:
        """The rows that the filter chooses, of all routers."""
        found = await self._gathered.gather(rows_question(wanted, for_console=True))
        return Listing(found.rows, found.silent)

    async def close(self) -> None:
        """Ask no other router any more."""
        await self._followed.close()
