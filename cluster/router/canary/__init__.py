"""Canaries: which version of a configuration serves a request, and whether it does well."""
