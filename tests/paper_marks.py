"""A device on paper that computes behind a host: both have a clock, and marks tell the device's."""

from __future__ import annotations


class PaperMark:
    """Passed once the host's clock is at `at_s`."""

    def __init__(self, device, at_s):
        self._device = device
        self.at_s = at_s

    def passed(self):
        return self._device.host_s >= self.at_s

    def wait(self):
        self._device.host_s = max(self._device.host_s, self.at_s)

    def seconds_since(self, before):
        assert self.passed() and before.passed()
        return self.at_s - before.at_s


class LaunchingDevice:
    """Work is done in order, `host_s` and `free_s` are the time and the end of all work.

    `most_ahead_s` is the most work that was ahead of the host.
    """

    def __init__(self):
        self.host_s = self.free_s = 0.0
        self.most_ahead_s = 0.0
        self.marks = 0

    def launch(self, host_s, device_s):
        """Launch work, which takes the host its time, and the device its own."""
        self.host_s += host_s
        self.free_s = max(self.free_s, self.host_s) + device_s
        self.most_ahead_s = max(self.most_ahead_s, self.free_s - self.host_s)

    def mark(self):
        self.marks += 1
        return PaperMark(self, max(self.free_s, self.host_s))

    def synchronize(self):
        self.host_s = max(self.host_s, self.free_s)
