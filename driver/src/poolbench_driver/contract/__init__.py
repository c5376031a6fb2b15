"""The contract between a suite and the frame: what a suite is, how it is found, and what it is given."""
