"""Observation of a running cluster: instruments, the ids of the work in progress, logs.

Nothing here changes a result. Without Ray, as in tests and in the driver, an instrument records nothing.
"""

from poolbench.telemetry.instruments import Counter, Gauge, Histogram, Instrument, Sink, record_to, record_to_ray
