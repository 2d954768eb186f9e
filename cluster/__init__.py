"""The cluster: replicas, router, directory, gateways, deployments and the command line."""
