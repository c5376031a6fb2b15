"""PoolBench service: pooler."""
