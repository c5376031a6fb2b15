"""Real servers for the cluster tier, each started on a free port and ended with the test session."""
