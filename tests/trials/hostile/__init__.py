"""A hostile trial: requests, messages and damaged files that must not harm anybody else's work."""
