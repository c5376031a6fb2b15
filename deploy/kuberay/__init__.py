"""PoolBench on Kubernetes, by KubeRay."""
