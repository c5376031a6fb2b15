"""Requests and answers of the scorer's HTTP verbs, and the scorers that requests make."""
