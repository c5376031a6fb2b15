"""PoolBench service: extractor."""
