"""The concept registry: PoolBench's 17 concepts, one YAML file each, and those of entry points."""

from poolbench.concepts.concept import (
    CONCEPTS,
    ENTRY_POINT_GROUP,
    Concept,
    Neighbours,
    refuse_restricted,
    refuse_sensitive,
    stay,
    withheld,
)
