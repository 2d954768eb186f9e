"""The living replicas, the ones that this router trusts, and how versions replace each other."""
