"""The data channel: one interface, one file per transport, one registry."""
