"""How PoolBench runs: on this machine, in Docker Compose."""
