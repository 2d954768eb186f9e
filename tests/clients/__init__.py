"""Real clients of other projects, from an environment of their own, against a running cluster.

`make test-clients` runs them. They are not in `make test`.
"""
