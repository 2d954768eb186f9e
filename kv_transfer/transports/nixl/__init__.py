"""The transport over NIXL: reads of a sender's memory in place, and messages, on any host."""
