"""The HTTP side of the services: the gate of the cluster, the border of a replica, the application behind it."""
