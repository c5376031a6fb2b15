"""Texts that others steered, by our names: which table has a concept, and what its strategies are called there."""

from dataclasses import replace
from pathlib import Path

from poolbench.errors import ConfigError
from poolbench_driver.imports.steered_texts import ImportedTexts, concept_file, require_texts
from poolbench_driver.models import model_folder
from poolbench_driver.stages.scope import Scope
from poolbench_driver.suites.poolbench.published_table import published_table


def with_published_texts(scope: Scope) -> Scope:
    """Return the scope with the imported steered texts that its configuration names.

    The run then generates no steered texts. If the configuration names no texts, return the scope unchanged.

    Raises:
        ConfigError: The folder lacks a concept, a strategy or a strength of the run, or the run steers nothing.
    """
    config = scope.config
    if config.steered_texts is None:
        return scope
    if not scope.steers:
        raise ConfigError("steered_texts are for D2 and D3, which --metrics leaves out")
    folder, budget = Path(config.steered_texts), config.budget
    if not folder.is_dir():
        raise ConfigError(f"steered_texts: there is no folder {folder}")
    source_ids = {strategy.ours: strategy.id for strategy in published_table().strategies if strategy.ours}
    imported = ImportedTexts(
        {name: concept_file(folder, name, (model_folder(config.model), config.model)) for name in config.concepts},
        {spec.id: (spec.id, source_ids.get(spec.id, spec.id)) for spec in scope.strategies},
    )
    for name in config.concepts:
        require_texts(imported, name, budget.strengths, (budget.opening_set, budget.num_openings))
    return replace(scope, imported_texts=imported)
