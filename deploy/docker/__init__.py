"""PoolBench in containers, by Docker Compose."""
