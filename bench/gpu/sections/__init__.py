"""The sections of `make bench-gpu`, one a file: `run(device, dry)` yields rows as it measures."""
