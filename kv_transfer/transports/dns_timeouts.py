"""How long a channel waits for names that nobody needs.

Channels meet in torch's store, which asks for the name of each address that connects, to log it
(torch
2.11 to 2.13): the client when it connects, the server before it answers. glibc gives a name server
5 s and asks again, so that with one datagram lost a link was not open within `connect_timeout_s`.
"""

from __future__ import annotations

# For the environment of a process that opens channels: each question is asked twice, for 1 s.
RESOLVER = {"RES_OPTIONS": "timeout:1 attempts:2"}
