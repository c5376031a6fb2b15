"""PoolBench service: steerer."""
