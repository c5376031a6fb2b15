"""A published table beside a run: its cells paired with ours, and the settings of the run that repeats it."""
