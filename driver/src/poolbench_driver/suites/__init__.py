"""The suites, one folder each, and the contract between a suite and the frame."""
