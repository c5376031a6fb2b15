"""A hostile trial: requests that must not harm anybody else's work."""
