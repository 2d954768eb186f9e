"""Makes TTFT of a real cluster rise by a known cause, for tests and for people who look at it."""
