"""The concept registry: 17 concepts of PoolBench, one YAML file each, open to third parties by entry point."""

from poolbench.concepts.concept import Concept, Neighbours
from poolbench.concepts.registry import ENTRY_POINT_GROUP, get_concept, list_concepts

__all__ = ["ENTRY_POINT_GROUP", "Concept", "Neighbours", "get_concept", "list_concepts"]
