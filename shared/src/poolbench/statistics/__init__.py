"""Statistical tests and intervals: arrays in, numbers out."""
