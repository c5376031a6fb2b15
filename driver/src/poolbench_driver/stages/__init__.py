"""Stages of a plan: functions from a scope to frozen values of keys, with the tasks that make them; for any suite."""
