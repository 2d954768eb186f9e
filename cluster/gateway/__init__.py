"""Front ends: gRPC, OpenAI over HTTP and SSE, WebSocket. They know `Generator` and no router."""
