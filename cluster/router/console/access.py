"""What leads operators to a router: the admin service, the console, other routers."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.console.app import Console
from cluster.console.news_feed import NewsFeed
from cluster.router.admin_service import AdminServicer
from cluster.router.console.acts import OperatorActs
from cluster.router.console.cluster_view import ClusterView
from cluster.router.console.parts import FrontEndKeys, KnownCluster, OwnRouter
from cluster.router.console.peer_server import PeerServer
from cluster.router.console.view import RouterView
from cluster.router.peers.news_following import FollowedNews
from cluster.router.peers.peer_port import PeerPort
from cluster.router.rows.gathered_rows import GatheredRows


@dataclass(frozen=True, slots=True)
class OperatorAccess:
    """What operators see and act on, behind the keys."""

    own: OwnRouter
    cluster: KnownCluster
    keys: FrontEndKeys

    def admin(self) -> AdminServicer:
        """The gRPC service of operators' commands."""
        own = self.own
        return AdminServicer(
            own.config,
            self.cluster,
            self.keys.operators,
            own.exchange.canaries,
            own.router.forget_streams,
            self._rows(),
        )

    def console(self) -> Console:
        """The page of operators."""
        view = ClusterView(self._view(), FollowedNews(self.cluster.peers), self._rows())
        return Console(view, self._acts(), self.keys.clients, self.keys.operators)

    async def peer_port(self, host: str) -> PeerPort:
        """The port for other routers on a free port of `host`; raises ConfigError.

        Only members of the cluster get in, and the asking router has checked the operator's key.
        """
        server = PeerServer(NewsFeed(self._view()), self._rows(), self.own.router.stops.here)
        return await PeerPort.open(self.cluster.membership, server.serve, host)

    def _view(self) -> RouterView:
        return RouterView(self.own, self.cluster)

    def _acts(self) -> OperatorActs:
        return OperatorActs(self.own, self.cluster)

    def _rows(self) -> GatheredRows:
        return GatheredRows(self.own.rows, self.cluster.peers, self._view().shares)
