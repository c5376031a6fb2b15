"""PoolBench service: prober."""
