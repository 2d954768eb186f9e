"""Router to replica: the multiplexed call stream, load reports and role changes."""
