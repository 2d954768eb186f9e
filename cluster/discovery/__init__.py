"""Which replicas live, which of them this router trusts, and how versions replace each other."""
