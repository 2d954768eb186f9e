"""Bounds the wait for a name server when a channel opens.

Channels meet in torch's store (torch 2.11 to 2.13). To log each connection, the store asks for the
name of its address: the client when it connects, the server before it answers. glibc waits 5 s for
a name server's answer before it asks again. One lost datagram would then make a link exceed
`connect_timeout_s`.
"""

from __future__ import annotations

# Bound: variables for a process that opens channels; it asks twice and waits 1 s for each answer.
RESOLVER = {"RES_OPTIONS": "timeout:1 attempts:2"}
