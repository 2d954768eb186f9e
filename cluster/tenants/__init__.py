"""API keys, fair shares between tenants, and caps that routers share."""
