"""Sparse probing on concepts and probing sets: does a feature, or a pooled direction, carry a concept better?"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product

import pyarrow as pa

from poolbench.contracts import Row
from poolbench.errors import ConfigError, CorpusError
from poolbench.pooling.registry import STRATEGIES
from poolbench.statuses import Status
from poolbench.steps import extractor
from poolbench.steps import prober as steps
from poolbench.steps.roles import Cell
from poolbench_corpora.probing import as_passages
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import as_concepts
from poolbench_driver.contract.source import RowSource, measured, strategy_columns
from poolbench_driver.corpora.sources import LocalStep, chosen_sets, stored_rows
from poolbench_driver.imports.saes import SaeInput
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.probes import SPLITS, Components, plan_probes, probe_params
from poolbench_driver.stages.resolve import resolve as resolve_concepts
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Draft, PlannedWork, Stage, joined
from poolbench_driver.stages.vectors import extract_params, plan_vectors
from poolbench_driver.suites.ce_bench.config import CeBenchConfig
from poolbench_driver.suites.ce_bench.metrics import ON_TEST

#: The strategy whose vectors, and directions C1 to C5, stand beside the features.
POOLING = "A1_mean"
#: How many further seeds the folds are drawn with.
_FOLD_SEEDS = 4
#: Features that direction C5 is made of, as in PoolBench.
_C5_FEATURES = 10
#: Plans the features of a table of passages at a layer; returns their keys by entrant.
ReadFeatures = Callable[[Draft, str, int], Mapping[str, str]]


@dataclass(frozen=True)
class SparseConceptProbes(Stage):
    """Keys of measures.

    Attributes:
        d1: D1 of the pooled vectors, by concept and layer.
        sparse: Sparse probes, by concept, layer and entrant.
    """

    d1: Mapping[tuple[str, int], str] = field(default_factory=dict)
    sparse: Mapping[tuple[str, int, str], str] = field(default_factory=dict)


def probing_scope(
    config: CeBenchConfig, session: Session, model: ModelInfo, autoencoders: Mapping[int, LocalStep]
) -> Scope | None:
    """Return the scope that probes the concepts and probing sets of a run, or None if the run names neither.

    Args:
        autoencoders: For each layer, the autoencoder from which direction C5 is computed.
    """
    if not config.concepts and not config.sets:
        return None
    settings = as_concepts(
        config,
        protocol="corrected",
        strategies=(POOLING,),
        layers=tuple(autoencoders),
        metrics=("d1",),
        fold_seeds=tuple(range(config.seed + 1, config.seed + 1 + _FOLD_SEEDS)),
        saes=(),
    )
    saes = {layer: SaeInput(step.key, _C5_FEATURES, step) for layer, step in autoencoders.items()}
    scope = (
        resolve_concepts(settings, session, model)
        if settings.concepts
        else Scope(settings, model, (STRATEGIES.get(POOLING),))
    )
    return replace(scope, saes=saes)


def plan_concepts(probing: Scope | None, read: ReadFeatures) -> SparseConceptProbes:
    """Plan D1 on the pooled vectors of each concept, and the sparse probes of each entrant on its passages."""
    if probing is None:
        return SparseConceptProbes(PlannedWork())
    vectors = plan_vectors(probing)
    probes = plan_probes(probing, vectors, Components(PlannedWork(), {}))
    draft, sparse = Draft(), dict[tuple[str, int, str], str]()
    for (concept, concept_vectors), layer in product(vectors.concepts.items(), probing.layers):
        sparse |= plan_sparse(draft, probing, concept, concept_vectors.passages, layer, read)
    d1 = {
        (concept, layer): concept_probes.measures[Cell(POOLING, layer)]
        for (concept, concept_probes), layer in product(probes.concepts.items(), probing.layers)
    }
    return SparseConceptProbes(joined([vectors, probes, Stage(draft.work)]), d1, sparse)


def plan_sparse(
    draft: Draft, probing: Scope, name: str, passages: Mapping[str, str], layer: int, read: ReadFeatures
) -> dict[tuple[str, int, str], str]:
    """Plan the sparse probes of each entrant on a concept or set, whose `passages` are keys by split."""
    features = {split: read(draft, passages[split], layer) for split in SPLITS}
    numbers = {entrant: str(n) for n, entrant in enumerate(features["train"])}
    inputs = {steps.PASSAGES(split): passages[split] for split in SPLITS}
    for split, (entrant, number) in product(SPLITS, numbers.items()):
        inputs[steps.PASSAGE_FEATURES(number, split)] = features[split][entrant]
    params = steps.SparseParams(
        concept=name,
        num_bootstrap=probing.config.budget.num_bootstrap,
        seed=probing.config.seed,
        fold_seeds=probing.config.fold_seeds,
    )
    keys = draft.add(steps.SPARSE, params, inputs, map(steps.SPARSE_MEASURES, numbers.values()))
    return {(name, layer, entrant): keys[steps.SPARSE_MEASURES(number)] for entrant, number in numbers.items()}


def concept_rows(planned: SparseConceptProbes, source: RowSource, column: str = "concept") -> Iterator[Row]:
    """Yield result rows: D1 of the pooled vectors, whose entrant is the strategy, and the sparse probes.

    Args:
        column: Column for the name of the probed concept or set: `concept`, or `task` for probing sets.
    """
    for (name, layer), key in planned.d1.items():
        identity = {"entrant": POOLING, column: name, "layer": layer, **strategy_columns(STRATEGIES.get(POOLING))}
        yield from measured("d1.auroc", key, identity, source, split="train", on_test=ON_TEST)
    for (name, layer, entrant), key in planned.sparse.items():
        identity = {"entrant": entrant, column: name, "layer": layer}
        yield from measured("sparse.auroc", key, identity, source, split="train", on_test=ON_TEST)


@dataclass(frozen=True)
class Reader:
    """A way to read concepts at a layer, with the AUROC of each concept and its spread over fold seeds.

    Attributes:
        name: Entrant and number of features, or strategy and direction.
        values: AUROC by concept, None where the figure is null.
        statuses: Status by concept, which says why a figure is null.
    """

    name: str
    layer: int
    values: Mapping[str, float | None]
    spreads: Mapping[str, float | None]
    statuses: Mapping[str, str]

    @property
    def mean(self) -> float | None:
        """Return the mean AUROC over concepts, or None if any is null, since means over fewer would not compare."""
        aurocs = [value for value in self.values.values() if value is not None]
        return sum(aurocs) / len(aurocs) if aurocs and len(aurocs) == len(self.values) else None

    def text(self, concept: str) -> str:
        """Return the AUROC of a concept with its spread as text, or the status that explains a null AUROC."""
        value, spread = self.values.get(concept), self.spreads.get(concept)
        if value is None:
            return self.statuses.get(concept, "")
        return f"{value:.3f}" if spread is None else f"{value:.3f} ± {spread:.3f}"


def readers(rows: Sequence[Row]) -> list[Reader]:
    """Build the readers of concepts and sets from the result rows of a run, sorted by mean AUROC from the best."""
    figures: dict[tuple[str, int], dict[str, Row]] = {}
    spreads: dict[tuple[str, int], dict[str, float | None]] = {}
    for row in rows:
        name = _reader_of(row)
        if name is None:
            continue
        at, of = (name, row["layer"]), row.get("concept") or row["task"]
        if row["metric"].endswith("seed_spread"):
            spreads.setdefault(at, {})[of] = row["value"]
        else:
            figures.setdefault(at, {})[of] = row
    concepts = dict.fromkeys(concept for by_concept in figures.values() for concept in by_concept)
    absent = {"value": None, "status": Status.FAILED.value}  # the row of a task that failed names no k
    concept_readers = [
        Reader(
            *at,
            {concept: by_concept.get(concept, absent)["value"] for concept in concepts},
            spreads.get(at, {}),
            {concept: by_concept.get(concept, absent)["status"] for concept in concepts},
        )
        for at, by_concept in figures.items()
    ]
    return sorted(concept_readers, key=lambda reader: -(reader.mean or 0.0))


def sparse_means(rows: Sequence[Row]) -> dict[str, dict[int, float | None]]:
    """Return the mean AUROC over concepts by entrant and number k of features.

    The mean is None where a concept has no AUROC.
    """
    means = {reader.name: reader.mean for reader in readers(rows)}
    by_entrant: dict[str, dict[int, float | None]] = {}
    for row in rows:
        if row["metric"] == "sparse.auroc" and (k := _k_of(row)):
            by_entrant.setdefault(row["entrant"], {})[k] = means[_sparse_reader(row["entrant"], k)]
    return by_entrant


def _k_of(row: Row) -> int | None:
    """Return the features of a sparse probe; None where its task failed."""
    k: int | None = json.loads(row["params"] or "{}").get("k")
    return k


def _sparse_reader(entrant: str, k: int) -> str:
    return f"{entrant}, k = {k}"


def _reader_of(row: Row) -> str | None:
    """Return which reader a row is a figure of; None for other rows."""
    metric = row["metric"]
    if metric in ("sparse.auroc", "sparse.seed_spread"):
        k = _k_of(row)
        return _sparse_reader(row["entrant"], k) if k else None
    if metric in ("d1.auroc", "d1.seed_spread"):
        return f"{POOLING}, probe of all dimensions"
    if metric.startswith("d1.direction."):
        return f"{POOLING} along {row['direction']}"
    return None


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
    """Read the probing sets that a run names, once for both the check and the plan.

    Raises:
        UnknownNameError: A name or pattern fits none of the known sets.
        ConfigError: A set does not consist of whole texts with two labels; the message names each one with its reason.
        CorpusError: No set can be read, or the corpus has none of these names.
    """
    if not config.sets:
        return SetPassages()
    catalogue, probing_sets = chosen_sets(config.sets, config.corpus.source)
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


def plan_sets(sets: SetPassages, probing: Scope | None, read: ReadFeatures) -> SparseConceptProbes:
    """Plan D1 on the pooled vectors of each set, and the sparse probes of each entrant on its texts."""
    if probing is None:
        return SparseConceptProbes(PlannedWork())
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
    return SparseConceptProbes(draft.work, d1, sparse)


def _plan_vectors(draft: Draft, probing: Scope, passages: str) -> dict[int, str]:
    """Plan the pooled vectors of some texts; return their keys by layer."""
    roles = {layer: extractor.VECTORS(POOLING, layer) for layer in probing.layers}
    params = extract_params(probing, (), probing.layers)
    keys = draft.add(extractor.EXTRACT, params, {extractor.PASSAGES(): passages}, roles.values())
    return {layer: keys[role] for layer, role in roles.items()}
