"""The cluster: one connection to store, queue and leases, and HTTP to the services."""
