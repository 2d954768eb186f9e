"""The data channel: one interface, one file or folder per transport, one registry."""
