"""Names that are checked before anything that takes seconds to import."""

from poolbench.concepts import CONCEPTS
from poolbench.library import attach
from poolbench.pooling.registry import select_strategies
from poolbench.settings import ClusterSettings
from poolbench.storage import open_store
from poolbench_driver.config import ConceptsConfig


def check_names(config: ConceptsConfig) -> None:
    """Raise UnknownNameError for a strategy, or for a concept that neither this installation nor the store has."""
    if config.strategies:
        select_strategies(config.strategies)
    concept_names = set(config.concepts) - {"all"}
    if concept_names <= {concept.id for concept in CONCEPTS.all()}:
        return
    cluster = ClusterSettings.load()
    attach(open_store(cluster.store_uri))
    for name in sorted(concept_names):
        CONCEPTS.get(name)
