"""NIXL in memory: the names that `nixl/agent.py` uses, between agents of one process.

As in NIXL over UCX, a read that was released, or whose peer was removed, still writes; only the end
of its agent stops it. `held` reads stay under way until `let_go`.
"""

# The names are those of NIXL.
# ruff: noqa: N802, N815

from __future__ import annotations

import ctypes
import json
from collections import deque


class StandInError(Exception):
    """NIXL's errors have no class in common."""


class Config:
    pthrDelay = 0


class Descriptors(list):
    def __init__(self, kind, rows):
        super().__init__((kind, *(int(number) for number in row[:3])) for row in rows)


class StandIn:
    """What `nixl._bindings` is, with what a test looks at."""

    NIXL_READ, NIXL_SUCCESS, NIXL_IN_PROG = "read", "done", "going"
    NIXL_THREAD_SYNC_STRICT = "strict"
    DRAM_SEG, VRAM_SEG = "DRAM", "VRAM"
    nixlAgentConfig = Config
    nixlRegDList = nixlXferDList = Descriptors

    def __init__(self):
        self.agents = {}
        self.held = False
        self.refused = False  # no read can begin
        self.failing = False  # a read under way fails
        self.reads = 0
        self.before_read = lambda descriptors: None
        self.waiting = []

    def nixlAgent(self, name, config):
        return StandInAgent(self, name)

    def let_go(self):
        """The peers go on: what is under way is written, unless its agent has ended."""
        waiting, self.waiting = self.waiting, []
        for agent, request in waiting:
            if agent in self.agents:
                copy(request)


class State:
    """What the world knows of an agent; it holds no reference to the agent itself."""

    def __init__(self):
        self.registered = []
        self.known = {}
        self.told = deque()


class StandInAgent:
    def __init__(self, world, name):
        self.world, self.name = world, name
        self.state = world.agents[name] = State()
        self.requests = []

    def __del__(self):
        self.world.agents.pop(self.name, None)

    def createBackend(self, kind, options):
        assert kind == "UCX"
        return 1

    def registerMem(self, listed, backends):
        self.state.registered += listed

    def deregisterMem(self, listed, backends):
        for one in listed:
            self.state.registered.remove(one)

    def getLocalMD(self):
        return json.dumps([self.name, self.state.registered]).encode()

    def getLocalPartialMD(self, listed, connection, backends):
        return json.dumps([self.name, listed]).encode()

    def loadRemoteMD(self, metadata):
        name, regions = json.loads(metadata)
        self.state.known.setdefault(name, []).extend(regions)
        return name.encode()

    def genNotif(self, peer, record, backends):
        if peer not in self.world.agents:
            raise StandInError("the peer is gone")
        self.world.agents[peer].told.append((self.name, record))

    def getNotifs(self, found, backends):
        while self.state.told:
            name, record = self.state.told.popleft()
            found.setdefault(name, []).append(record)
        return found

    def createXferReq(self, operation, mine, theirs, peer, note, backends):
        known = self.state.known.get(peer, [])
        inside = all(within(one, self.state.registered) for one in mine)
        if self.world.refused or not inside or not all(within(one, known) for one in theirs):
            raise StandInError("no such memory is registered")
        self.requests.append((mine, theirs, peer))
        return len(self.requests) - 1

    def postXferReq(self, handle, note):
        request = self.requests[handle]
        self.world.reads += 1
        self.world.before_read(request[1])
        if self.world.failing or request[2] not in self.world.agents:
            raise StandInError("the peer is gone")
        if self.world.held:
            self.world.waiting.append((self.name, request))
            return self.world.NIXL_IN_PROG
        copy(request)
        return self.world.NIXL_SUCCESS

    def getXferStatus(self, handle):
        under_way = any(request is self.requests[handle] for _, request in self.world.waiting)
        return self.world.NIXL_IN_PROG if under_way else self.world.NIXL_SUCCESS

    def releaseXferReq(self, handle):
        """Frees the handle, and stops nothing."""


def within(one, regions):
    kind, address, size, _ = one
    return any(
        kind == its_kind and its_address <= address and address + size <= its_address + its_size
        for its_kind, its_address, its_size, _ in regions
    )


def copy(request):
    for mine, theirs in zip(request[0], request[1], strict=True):
        assert mine[2] == theirs[2]
        ctypes.memmove(mine[1], theirs[1], mine[2])
