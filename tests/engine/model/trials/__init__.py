"""Trials of kernels, with stand-ins for kernels and timers."""
