"""From the settings of a suite of concepts to its scope: names, model, corpora and what was imported."""

from poolbench.concepts import CONCEPTS
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.corpora.sources import absent_concepts, require_one_kind, require_seed_words
from poolbench_driver.imports.saes import sae_inputs
from poolbench_driver.imports.states import imported_model, is_imported
from poolbench_driver.models import ModelInfo, annotator_version, describe_model
from poolbench_driver.stages.scope import Scope, left_out, neighbours_of, resolve_names
from poolbench_driver.stages.stage import committed_keys


def resolve(given: ConceptsConfig, session: Session, model: ModelInfo | None = None) -> Scope:
    """Return the scope of a run. Raise UnknownNameError or LayerError with the nearest valid names.

    Args:
        model: The model's properties. If None, they are looked up.
    """
    if is_imported(given.model) and "metrics" not in given.model_fields_set:
        d1_alone = given.model_copy(update={"metrics": ("d1",)})  # all that can be measured without the model
        return resolve(d1_alone, session, model)
    config, strategies = resolve_names(given)
    if is_imported(config.model):
        model = imported_model(config, session.artifacts)
    elif model is None:
        model = describe_model(config, session.services)
    concepts = [CONCEPTS.get(name) for name in config.concepts]
    require_one_kind(config, concepts)
    require_seed_words(config, concepts)
    note = "" if given.strategies is not None else left_out(strategies)
    return Scope(
        config,
        model,
        tuple(strategies),
        annotator_version(config.annotator),
        absent=absent_concepts(config, neighbours_of(config), beside_own=any(concept.corpus for concept in concepts)),
        present=frozenset(committed_keys(session.artifacts)),
        saes=sae_inputs(config, model, session.artifacts),
        notes=(note,) if note else (),
    )
