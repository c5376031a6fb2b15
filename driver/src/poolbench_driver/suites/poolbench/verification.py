"""What the scores of passages and texts of a run show of its figures, without a model: D1, D2 and D3 computed again."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pyarrow as pa

from poolbench.concepts import CONCEPTS, Concept
from poolbench.contracts import Row
from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.contracts.wire import NULLS, UNSTEERED
from poolbench.errors import CellError, PoolbenchError
from poolbench.grouping import grouped
from poolbench.pooling.registry import STRATEGIES
from poolbench.statistics.auroc import auroc, auroc_resamples
from poolbench.statistics.bootstrap import bootstrap_counts, percentile_interval
from poolbench.statistics.folds import MIN_GROUPS, connected_groups, grouped_folds
from poolbench.statuses import Status
from poolbench.steps.prober import ProbeParams
from poolbench.steps.roles import Cell
from poolbench_driver.config import ALONG, ConceptsConfig
from poolbench_driver.contract.source import opaque
from poolbench_driver.contract.suite import FinishedRun
from poolbench_driver.contract.verification import Check, Say, State, compared
from poolbench_driver.corpora.sources import dataset_revision, passages_step, run_dataset
from poolbench_driver.imports.states import is_imported
from poolbench_driver.measures.response import rules_of, tables_of_scores
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.stages.scope import wanted_scorers
from poolbench_driver.suites.poolbench.d1 import concept_check_rows
from poolbench_driver.suites.poolbench.d2 import D2_METRICS, d2_measures
from poolbench_driver.suites.poolbench.d3 import all_d3
from poolbench_driver.suites.poolbench.gates import check_gates
from poolbench_driver.suites.poolbench.omission import check_coverage, openings_of_cells, passages_of_cells
from poolbench_driver.suites.poolbench.steering_results import UNUSABLE, CellTexts, SteeredCell

#: Figures that the scores of passages give.
OF_PASSAGES = ("d1.auroc", "d1.auroc_test", "d1.saturation", "d1.alarms", "d1.collapses")
#: Label, group and fold of passages by id.
Passages = dict[str, tuple[int, str, int]]
#: Passages and their scores by concept, split, strategy and layer.
Scored = dict[tuple[str, str, str, int], tuple[Passages, list[float | None]]]
#: Rows of `text_scores` by concept, which unsteered texts have none of, and name.
TextRows = Mapping[tuple[str | None, str], list[Row]]


def verify(run: FinishedRun, say: Say) -> Iterator[Check]:
    """Yield the checks of a run: cells, corpus, coverage, scores, D1, scorers, D2 and D3."""
    config = run.config
    assert isinstance(config, ConceptsConfig)
    rows, is_steered = run.tables["results"].to_pylist(), bool({"d2", "d3"} & set(config.metrics))
    scored, passages = _scored(run)
    yield _cells(run, config, rows)
    yield check_corpus(config, rows, passages, say)
    texts = grouped(((row["concept"], row["name"]), row) for row in run.rows("text_scores"))
    scorers = {row["scorer"] for row in rows if row["metric"] == "scorer.gate" and row["value"] is not None}
    counts = [*passages_of_cells(rows, scored, passages)]
    counts += openings_of_cells(config, scorers, texts) if is_steered else ()
    yield check_coverage(counts)
    yield _scores(config, scored, passages, texts)
    families = grouped((row["metric"].partition(".")[0], row) for row in rows)
    of_d1 = families.get("d1", [])
    again = [*_d1(config, scored, passages, say), *concept_check_rows(of_d1)]
    yield compared("d1", of_d1, again, is_of_scores)
    if is_steered:
        yield check_gates(rows, scorers)
    again = list(_steered(config, rows, texts, say)) if is_steered else []
    for family in ("d2", "d3"):
        if family in config.metrics:
            yield compared(family, families.get(family, []), again, is_of_scores)


def figures_of_scores(run: FinishedRun, say: Say) -> list[Row]:
    """Return the rows of D1 that the scores of passages give, on the passages of the corpus if it is here."""
    config = run.config
    assert isinstance(config, ConceptsConfig)
    scored, passages = _scored(run)
    check_corpus(config, [], passages, say)
    rows = list(_d1(config, scored, passages, say))
    return [*rows, *concept_check_rows(rows)]


def _scored(run: FinishedRun) -> tuple[Scored, dict[tuple[str, str], Passages]]:
    """Return the scored passages of each cell, and those of each concept and split."""
    scored, passages = Scored(), defaultdict[tuple[str, str], Passages](dict)
    for row in run.tables["passage_scores"].to_pylist():
        cell = scored.setdefault((row["concept"], row["split"], row["strategy"], row["layer"]), ({}, []))
        cell[0][row["passage_id"]] = row["label"], row["group"], row["fold"]
        cell[1].append(row["score"])
    for (concept, split, *_), (of_cell, _) in scored.items():
        passages[concept, split] |= of_cell
    return scored, passages


def is_of_scores(metric: str) -> bool:
    """Return whether a metric can be computed from scores of passages and texts.

    The cosine of two directions, `d3.rep_*`, cannot.
    """
    return metric in (*OF_PASSAGES, *D2_METRICS) or (metric.startswith("d3.") and not metric.startswith("d3.rep_"))


def _cells(run: FinishedRun, config: ConceptsConfig, rows: Sequence[Row]) -> Check:
    """Check that each cell of the configuration has exactly one result row, and that there are no other cells."""
    strategies, problems = config.strategies or (), list[str]()
    pairs = product(strategies, config.steering.directions)
    steered = set(product(config.concepts, (config.steering.entrant(*pair) for pair in pairs)))
    layers = {row["layer"] for row in rows if row["metric"] == "d1.auroc"}
    if run.model is not None and not is_imported(config.model):  # which has the layers that were imported
        layers = set(run.model.layers(config.layers))
    for metric in ("d1.auroc", "d2.best_gain", "d3.robust_ld"):
        is_d1 = metric == "d1.auroc"
        columns = ("concept", "strategy", "layer") if is_d1 else ("concept", "strategy")
        expected = set(product(config.concepts, strategies, layers)) if is_d1 else steered
        counts = Counter(tuple(row[name] for name in columns) for row in rows if row["metric"] == metric)
        if metric.partition(".")[0] in config.metrics:
            wrong = {cell for cell, count in counts.items() if count > 1} | (expected ^ counts.keys())
            problems += [f"{', '.join(map(str, cell))} has {counts[cell]} rows of {metric}" for cell in sorted(wrong)]
    return Check.of("cells", problems, "each concept, strategy and layer of the settings has its rows, and no other")


def check_corpus(
    config: ConceptsConfig, rows: Sequence[Row], passages: dict[tuple[str, str], Passages], say: Say
) -> Check:
    """Compare the passages that have scores with the passages of the corpus.

    If this machine has the corpus, its passages replace the entries of `passages`. Otherwise the check is `unchecked`.
    """
    if any(row["dataset"].partition("+")[0] == "real" for row in rows):  # as rows of earlier runs say
        return Check("corpus", State.UNCHECKED, "the passages were cut from archives, so this machine has none of them")
    problems, count = list[str](), 0
    for (name, split), scored in passages.items():
        say(f"corpus: {name}, {split}")
        try:
            expected = _passages(config, CONCEPTS.get(name), split)
        except (PoolbenchError, OSError) as error:
            return Check("corpus", State.UNCHECKED, f"the passages are not on this machine ({name}: {error})")
        count += len(expected)
        problems += [
            f"passage {passage} of {name} is not one of the corpus, or has another label, group or fold there"
            for passage, facts in scored.items()
            if expected.get(passage) != facts
        ]
        passages[name, split] = expected
    if passages:  # else the corpus need not be here
        revision = dataset_revision(run_dataset(config, [CONCEPTS.get(name) for name in config.concepts]))
        others = {str(row["dataset_revision"]) for row in rows} - {revision}
        problems += [f"dataset_revision is {other} in some rows, and {revision} here" for other in sorted(others)]
    return Check.of("corpus", problems, f"{count} passages have the labels, groups and folds of the corpus here")


def _passages(config: ConceptsConfig, concept: Concept, split: str) -> Passages:
    """Return label, group and fold of the passages of a split, by passage id as in the tables of a run."""
    step = passages_step(config, concept, split)
    table = step.build()
    assert isinstance(table, pa.Table)
    ids, labels = table["passage_id"].to_pylist(), np.array(table["label"].to_pylist())
    groups = connected_groups(table["pair_id"].to_pylist(), table["doc_id"].to_pylist())
    folds = np.full(len(ids), -1)
    if split == "train":
        number = ProbeParams(concept=concept.id, seed=config.seed).folds
        folds = grouped_folds(groups, labels, number, config.seed, min_groups=MIN_GROUPS)
    if concept.sensitive:
        ids = [opaque(step.key, passage) for passage in ids]
    return dict(zip(ids, zip(labels.tolist(), map(str, groups.tolist()), folds.tolist(), strict=True), strict=True))


def _scores(
    config: ConceptsConfig, scored: Scored, passages: Mapping[tuple[str, str], Passages], texts: TextRows
) -> Check:
    """Check that strategies share the same passages, that scores of texts are in [0, 1], and the null directions."""
    problems = list[str]()
    for at, (of_cell, scores) in scored.items():
        whole = passages[at[:2]]
        if any(whole.get(passage) != facts for passage, facts in of_cell.items()) or len(of_cell) != len(scores):
            problems.append(f"{', '.join(map(str, at))}: passages are not those of the other strategies")
    for (concept, name), rows in texts.items():
        outside = [row["score"] for row in rows if row["score"] is not None and not 0 <= row["score"] <= 1]
        if outside:
            problems.append(f"texts of {concept or 'all concepts'}, {name} have scores such as {outside[0]:g}")
        num_directions, num_nulls = len({row["direction"] for row in rows}), config.budget.num_nulls
        if name == NULLS and num_directions != num_nulls:
            problems.append(f"{concept} has texts along {num_directions} null directions, and the settings {num_nulls}")
    count = sum(len(scores) for _, scores in scored.values()) + sum(map(len, texts.values()))
    return Check.of("scores", problems, f"{count} scores of passages and texts agree with one another")


def _d1(config: ConceptsConfig, scored: Scored, passages: dict[tuple[str, str], Passages], say: Say) -> Iterator[Row]:
    """Yield AUROC rows computed from scores of passages, with intervals from a bootstrap over groups.

    On the train split, only passages of the same fold are compared.
    """

    @cache
    def counts(concept: str, split: str) -> np.ndarray:
        num_groups = 1 + max(int(group) for _, group, _ in passages[concept, split].values())
        return bootstrap_counts(num_groups, config.budget.num_bootstrap, config.seed).astype(np.float32)

    for (concept, split, strategy, layer), (of_cell, scores) in scored.items():
        say(f"d1: {concept}, {strategy}, layer {layer}")
        metric, values = ("d1.auroc" if split == "train" else "d1.auroc_test"), np.array(scores, dtype=float)
        labels, groups, folds = (np.array(column, dtype=int) for column in zip(*of_cell.values(), strict=True))
        if np.isnan(values).any() or len(set(labels)) < 2:
            status = Status.NOT_CONVERGED if np.isnan(values).any() else Status.ONE_CLASS
            measure = Measure.null(metric, status, "some passages have no score, or all have one label")
        else:
            samples = auroc_resamples(labels, values, counts(concept, split)[:, groups], folds, groups)
            measure = Measure.of(metric, auroc(labels, values, folds), percentile_interval(samples))
        measure = measure.with_fields(n=len(values), num_groups=len(set(groups)))
        yield measure.to_row() | {"concept": concept, "strategy": strategy, "layer": layer}


def _steered(config: ConceptsConfig, rows: Sequence[Row], texts: TextRows, say: Say) -> Iterator[Row]:
    """Compute D2 and D3 again for each concept and entrant whose texts have scores. Yield result rows."""
    d1_status = {(r["concept"], r["strategy"], r["layer"]): r["status"] for r in rows if r["metric"] == "d1.auroc"}
    layers = {r["layer"] for r in rows if r["metric"] in ("d2.best_gain", "d3.robust_ld")}
    names = {name for concept in config.concepts for name in wanted_scorers(config, CONCEPTS.get(concept))}
    scorers = {
        name: GatedScorer.from_gate(
            name, [r for r in rows if r["scorer"] == name and r["metric"].startswith("scorer.")]
        )
        for name in names
    }
    rules = rules_of(config)
    for (name, strategy, direction), layer in product(
        product(config.concepts, config.strategies or (), config.steering.directions), layers
    ):
        entrant = config.steering.entrant(strategy, direction)
        say(f"d2, d3: {name}, {entrant}")
        parts = [texts.get(key, []) for key in ((name, entrant), (None, UNSTEERED), (name, NULLS))]
        if not (parts[0] and parts[1]) or d1_status.get((name, strategy, layer)) in UNUSABLE:
            continue
        cell_texts = CellTexts(*(tables_of_scores(part) for part in parts if part))
        along = replace(rules, direction=direction)
        cell = SteeredCell(CONCEPTS.get(name), STRATEGIES.get(strategy), entrant, along, cell_texts)
        d3 = all_d3(scorers, _no_direction, cell) if "d3" in config.metrics else ()
        for measure in (*d2_measures(cell_texts, scorers[name], along), *d3):
            yield measure.to_row() | {"concept": name, "strategy": entrant, "layer": layer}


def _no_direction(concept: str, strategy: str) -> pa.Table:
    raise CellError(Status.NOT_IMPLEMENTED, f"the direction of {concept} by {strategy} is not among the scores")


def behind(plan: ConceptsPlan, concept: str, entrant: str, layer: int) -> frozenset[str]:
    """Return the artifact keys of the measures and scores of a cell.

    At the steering layer, the keys of its texts, their scores and the scorers' gates are included.
    """
    probes, at = plan.probes.concepts[concept], Cell(entrant.partition(ALONG)[0], layer)
    keys = {probes.measures[at], probes.scores[at]}
    if plan.steering is not None and layer == plan.scope.steering_layer:
        stages = plan.steering
        texts, scores = stages.texts.concepts[concept].texts, stages.scores.concepts[concept]
        keys |= {key for name in (entrant, NULLS) for key in (scores[name], *texts[name])}
        keys |= {stages.scores.unsteered, *stages.unsteered.texts}
        keys |= {stages.scorers.concepts[name].gate for name in plan.scope.scorers_of(CONCEPTS.get(concept))}
    return frozenset(keys)
