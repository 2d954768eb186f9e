"""Pure: predicts what a request means on each pair of replicas, and picks a pair."""
