"""The probing sets of the real-text archives as tables: `assets/probing_sets`."""
