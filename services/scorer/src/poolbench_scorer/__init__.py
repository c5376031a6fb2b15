"""PoolBench service: scorer."""
