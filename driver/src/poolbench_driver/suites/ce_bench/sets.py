"""Probing sets beside concepts: whole texts with two labels, read by the features and directions that read concepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from poolbench.errors import ConfigError, CorpusError
from poolbench.steps import extractor
from poolbench.steps import prober as steps
from poolbench_corpora.probing import as_passages
from poolbench_driver.corpora.probing_sets import chosen_sets
from poolbench_driver.corpora.sources import stored_rows
from poolbench_driver.stages.probes import SPLITS, probe_params
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Draft, PlannedWork
from poolbench_driver.stages.vectors import extract_params
from poolbench_driver.suites.ce_bench.concepts import POOLING, ConceptProbes, ReadFeatures, plan_sparse
from poolbench_driver.suites.ce_bench.config import CeBenchConfig


@dataclass(frozen=True)
class SetPassages:
    """The sets of a run.

    Attributes:
        by_set: PASSAGES by set and split.
        notes: Sets that could not be read, and samples that were left out, with the reasons.
    """

    by_set: Mapping[str, Mapping[str, pa.Table]] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def read_sets(config: CeBenchConfig) -> SetPassages:
    """Return the sets that a run names; read once for the check and the plan.

    Raises:
        UnknownNameError: A name or pattern fits none of the known sets.
        ConfigError: A set does not consist of whole texts with two labels; the message names each one with its reason.
        CorpusError: No set can be read, or the corpus has none of these names.
    """
    if not config.sets:
        return SetPassages()
    catalogue, probing_sets = chosen_sets(config)
    data, unread = catalogue.read_all(probing_sets, config.seed)
    passages, refused = dict[str, Mapping[str, pa.Table]](), list[str]()
    for probing_set in probing_sets:
        if probing_set.id in config.concepts:
            refused.append(f"probing set {probing_set.id}: a concept of the run has this name")
        elif probing_set.id in data:
            try:
                passages[probing_set.id] = as_passages(probing_set, data[probing_set.id], config.seed)
            except CorpusError as error:
                refused.append(str(error))
    if refused:
        fitting = f"; of the named ones: {', '.join(passages)}" if passages else ""
        raise ConfigError(f"--sets: {'; '.join(refused)}. Name only sets of whole texts with two labels{fitting}")
    if not passages:
        raise CorpusError(f"--sets: no probing set can be read: {unread[0]}")
    return SetPassages(
        passages, tuple(map(str, [*unread, *(note for set_data in data.values() for note in set_data.notes)]))
    )


def plan_sets(sets: SetPassages, probing: Scope | None, read: ReadFeatures) -> ConceptProbes:
    """Plan D1 of the pooled vectors of each set, and the sparse probes of each entrant on the same texts."""
    if probing is None:
        return ConceptProbes(PlannedWork())
    draft, d1, sparse = Draft(), dict[tuple[str, int], str](), dict[tuple[str, int, str], str]()
    for name, tables in sets.by_set.items():
        passages = {
            split: draft.add_local(stored_rows(f"{name}/{split}", table, "probing")) for split, table in tables.items()
        }
        vectors = {split: _plan_vectors(draft, probing, passages[split]) for split in SPLITS}
        for layer in probing.layers:
            inputs = {steps.PASSAGES(split): passages[split] for split in SPLITS}
            inputs |= {steps.VECTORS(split, POOLING, layer): vectors[split][layer] for split in SPLITS}
            inputs[steps.SAE(layer)] = probing.saes[layer].key
            measures = steps.MEASURES(POOLING, layer)
            keys = draft.add(steps.PROBE, probe_params(probing, name, layer), inputs, [measures])
            d1[name, layer] = keys[measures]
            sparse |= plan_sparse(draft, probing, name, passages, layer, read)
    return ConceptProbes(draft.work, d1, sparse)


def _plan_vectors(draft: Draft, probing: Scope, passages: str) -> dict[int, str]:
    """Plan the pooled vectors of some texts; return their keys by layer."""
    roles = {layer: extractor.VECTORS(POOLING, layer) for layer in probing.layers}
    params = extract_params(probing, (), probing.layers)
    keys = draft.add(extractor.EXTRACT, params, {extractor.PASSAGES(): passages}, roles.values())
    return {layer: keys[role] for layer, role in roles.items()}
