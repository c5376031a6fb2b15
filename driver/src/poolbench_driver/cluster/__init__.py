"""The cluster as the driver sees it: one connection to store, queue and leases, and HTTP to the services."""
