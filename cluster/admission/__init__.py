"""Admit, queue or refuse a request; the waiting queue; retry times."""
