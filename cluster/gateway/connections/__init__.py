"""HTTP and WebSocket connections: what a client may send, for how long, and how many may be open.

Everything here happens before the application sees a request.
"""
