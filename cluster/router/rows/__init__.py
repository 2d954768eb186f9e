"""The rows of the request log: made when requests end, and listed for operators."""
