"""The state that a router publishes for its peers, as the directory stores it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from cluster.tenants.cap_shares import PeerCapUse


@dataclass(frozen=True, slots=True)
class PeerState:
    """A router's use of the caps, its charges to each tenant, and the tenants present there.

    `charged` are totals since the router began, `here` the tenants with requests in it.
    `rolled_back` has why an endpoint's canary was rolled back, by endpoint and its version.
    """

    cap_use: PeerCapUse
    charged: Mapping[str, float] = field(default_factory=dict)
    here: frozenset[str] = frozenset()
    rolled_back: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The state as it is stored."""
        use = self.cap_use
        return json.dumps(
            {
                "sequence": use.sequence,
                "among": use.among,
                "left": use.left,
                "portions": [[*key, *portion] for key, portion in use.portions.items()],
                "charged": self.charged,
                "here": sorted(self.here),
                "rolled_back": self.rolled_back,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> PeerState:
        """Read a state; fields that this version does not know are ignored. ValueError if bad."""
        try:
            return _read(json.loads(text))
        except (TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a router's state: {error}") from None


def _read(data: Any) -> PeerState:
    use = PeerCapUse(
        sequence=int(data["sequence"]),
        among=int(data["among"]),
        portions={
            (str(tenant), str(cap)): (int(requested), int(wants))
            for tenant, cap, requested, wants in data["portions"]
        },
        left=bool(data.get("left", False)),
    )
    if use.among < 0:
        raise ValueError("not a router's state: among is negative")
    charged = {str(name): float(total) for name, total in data.get("charged", {}).items()}
    # A total without an end would never leave the shares again.
    if not all(isfinite(total) for total in charged.values()):
        raise ValueError("not a router's state: a charge is not finite")
    return PeerState(
        use,
        charged=charged,
        here=frozenset(str(name) for name in data.get("here", ())),
        rolled_back={str(key): str(why) for key, why in data.get("rolled_back", {}).items()},
    )
