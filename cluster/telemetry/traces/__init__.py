"""OpenTelemetry traces of requests, made from the rows of the request log."""
