"""Whether a kernel is used: it must be right and faster on this device. And how time is taken."""
