"""From the artifacts of a run to its rows: D1, steering, confounds, and the tables beside them."""
