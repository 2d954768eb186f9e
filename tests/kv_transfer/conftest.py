"""UCX, which NIXL uses, stays on the loopback interface in all tests and their processes."""

from __future__ import annotations

import os

# Not over other processes' memory: that needs a right which containers often lack.
os.environ.setdefault("UCX_TLS", "tcp,self")
os.environ.setdefault("UCX_NET_DEVICES", "lo")
