"""The two ends of one link, and its control stream."""
