"""poolbench-driver: plan, run and report PoolBench."""
