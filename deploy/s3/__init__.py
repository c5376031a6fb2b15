"""Policies of the object store's users: one file per role."""
