"""The contracts between driver and services: keys, tables, tasks and results.

Nothing is imported here, so that reading a configuration does not load Arrow.
"""
