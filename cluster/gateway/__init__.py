"""Front ends: gRPC, WebSocket, HTTP with SSE. They know `Generator` and no router."""
