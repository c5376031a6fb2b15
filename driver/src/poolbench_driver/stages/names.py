"""Names that are checked before anything that takes seconds to import."""

from poolbench.concepts import CONCEPTS
from poolbench.errors import ConfigError, UnknownConceptError
from poolbench.pooling.registry import select_strategies
from poolbench_driver.config import ConceptsConfig


def check_names(config: ConceptsConfig) -> None:
    """Raise UnknownNameError for an unknown strategy, or a concept that neither this installation nor the cluster has.

    If no cluster is configured, only the concepts of this installation are valid.
    """
    if config.strategies:
        select_strategies(config.strategies)
    concept_names = set(config.concepts) - {"all"}
    if concept_names <= {concept.id for concept in CONCEPTS.all()}:
        return
    from poolbench_driver.cluster.session import open_artifacts

    no_cluster = ""
    try:
        open_artifacts()
    except ConfigError as error:
        no_cluster = f"; concepts of users are in a cluster, and {error}"
    for name in sorted(concept_names):
        try:
            CONCEPTS.get(name)
        except UnknownConceptError as error:
            error.args = (f"{error}{no_cluster}",)
            raise
