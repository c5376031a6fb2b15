"""PoolBench: the domain shared by every service and the driver."""

__version__ = "0.1.0"
