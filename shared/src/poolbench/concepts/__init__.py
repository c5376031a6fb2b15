"""The concept registry: PoolBench's 17 concepts, one YAML file each, and those of entry points."""

from poolbench.concepts.concept import Concept, Neighbours
from poolbench.concepts.registry import ENTRY_POINT_GROUP, get_concept, list_concepts

__all__ = ["ENTRY_POINT_GROUP", "Concept", "Neighbours", "get_concept", "list_concepts"]
