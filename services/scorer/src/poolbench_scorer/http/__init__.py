"""Requests and responses of the scorer's HTTP verbs, and the scorers that requests make."""
