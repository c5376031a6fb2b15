"""A service as an application of Ray Serve: its deployment, its replica, how many of them."""
