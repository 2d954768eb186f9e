"""Generators: the Grafana dashboard, the schema of the chart's values, the metrics page."""
