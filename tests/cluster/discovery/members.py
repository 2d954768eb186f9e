"""Records of replicas, as tests of the directory and the roster want them."""

from __future__ import annotations

from cluster.replica_record import ReplicaRecord
from protos.wire.secret import ClusterSecret

SECRET = ClusterSecret(b"the secret of the tests")
OTHER_SECRET = ClusterSecret(b"the secret of another cluster")


def record(name: str = "prefill#a", role: str = "prefill", generation: int = 1) -> ReplicaRecord:
    return ReplicaRecord(
        id=name,
        role=role,  # type: ignore[arg-type]
        address="127.0.0.1:1",
        generation=generation,
    )
