"""The audit of a run's corpora, and D1 beyond the best confound of each.

Both are computed here, from committed passages and scores of D1: no task is repeated, and no key moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pyarrow as pa

from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.contracts.results import AUDIT_SCHEMA
from poolbench.contracts.tables import PASSAGES, require_columns
from poolbench.errors import CellError, InputError
from poolbench.statistics import group_weights
from poolbench.statuses import Status
from poolbench.steps.roles import Cell
from poolbench_corpora.audit import Audit, audit
from poolbench_driver.contract.source import RowSource, strategy_columns
from poolbench_driver.loop import Failure
from poolbench_driver.stages.probes import ConceptProbes
from poolbench_driver.suites.poolbench.measures.confounds import METRIC, excess_over_confound
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan


@dataclass(frozen=True)
class Confounds:
    """The audits of a run's concepts, or why there is none."""

    plan: PoolBenchPlan
    source: RowSource
    audits: Mapping[str, Audit | CellError]

    @classmethod
    def of(cls, plan: PoolBenchPlan, source: RowSource) -> Confounds:
        """Audit the train and test passages of each measured concept."""
        return cls(plan, source, {name: _audit(plan, name, source) for name in plan.probes.concepts})

    def rows(self, probes: ConceptProbes) -> Iterator[Row]:
        """Yield `d1.excess_over_confound` of every strategy at every layer of one concept."""
        scope, concept_audit = self.plan.scope, self.audits[probes.concept.id]
        baseline = _baseline(concept_audit, scope.config.budget.num_bootstrap, scope.config.seed)
        for spec, layer in product(scope.strategies, scope.layers):
            table = self.source.table(probes.scores[Cell(spec.id, layer)])
            try:
                if isinstance(table, Failure):
                    raise table.error
                if isinstance(baseline, CellError):
                    raise baseline
                measure = baseline.excess(table)
            except CellError as error:
                measure = Measure.failed(METRIC, error, seed=scope.config.seed)
            identity = {**strategy_columns(spec), "concept": probes.concept.id, "layer": layer, "split": "train"}
            yield {**identity, **measure.to_row()}

    def table(self) -> pa.Table:
        """Return the audits as a table, one row per check; a concept without an audit has one row."""
        rows = [row for name, concept_audit in self.audits.items() for row in _audit_rows(name, concept_audit)]
        return pa.Table.from_pylist(rows, AUDIT_SCHEMA)


@dataclass(frozen=True)
class _Baseline:
    """The best confound of a corpus, to compare cells with."""

    audit: Audit
    name: str
    scores: np.ndarray
    weights_Rn: np.ndarray
    seed: int
    position: Mapping[str, int] = field(default_factory=dict)

    def excess(self, table: pa.Table) -> Measure:
        """Return the excess of the probe whose PROBE_SCORES are given.

        Raises:
            CellError: The cell has no scores of train passages, or its folds are not those of the audit.
        """
        rows = [row for row in table.to_pylist() if row["split"] == "train"]
        if not rows:
            raise CellError(Status.TOO_FEW, "D1 has no scores of train passages")
        training = self.audit.training
        at = np.array([self.position.get(row["passage_id"], -1) for row in rows])
        folds, labels = (np.array([row[name] for row in rows]) for name in ("fold", "label"))
        if (at < 0).any() or (training.folds[at] != folds).any() or (training.labels[at] != labels).any():
            raise CellError(Status.FAILED, "the scores of D1 are not of the passages and folds of the audit")
        scores = np.array([np.nan if row["score"] is None else row["score"] for row in rows])
        groups = training.groups[at]
        counts = {"n": len(at), "num_groups": len(np.unique(groups)), "seed": self.seed}
        drawn = self.weights_Rn[:, at]
        return excess_over_confound(labels, scores, self.scores[at], folds, drawn, groups, confound=self.name, **counts)


def _baseline(concept_audit: Audit | CellError, num_bootstrap: int, seed: int) -> _Baseline | CellError:
    if isinstance(concept_audit, CellError):
        return concept_audit
    training, best = concept_audit.training, concept_audit.best
    if training.error is not None:
        return training.error
    if best is None:
        return CellError(Status.TOO_FEW, "no confound of the corpus could be computed")
    weights_Rn = group_weights(training.groups, num_bootstrap, seed)
    position = {name: number for number, name in enumerate(training.ids)}
    return _Baseline(concept_audit, best.name, best.scores, weights_Rn, seed, position)


def _audit(plan: PoolBenchPlan, name: str, source: RowSource) -> Audit | CellError:
    """Return the audit of the passages that D1 reads."""
    vectors, config = plan.vectors.concepts[name], plan.scope.config
    tables = []
    for split in ("train", "test"):
        table = source.table(vectors.passages[split])
        if isinstance(table, Failure):
            return table.error
        try:
            require_columns(table, PASSAGES, "the passages")
        except InputError as error:
            return CellError(Status.FAILED, str(error))
        tables.append(table.replace_schema_metadata(None))
    passages = pa.concat_tables(tables)
    return audit(vectors.concept, passages, seed=config.seed, num_bootstrap=config.budget.num_bootstrap)


def _audit_rows(name: str, concept_audit: Audit | CellError) -> Iterable[Row]:
    if isinstance(concept_audit, Audit):
        return concept_audit.rows()
    reason = {"status": concept_audit.status.value, "reason": str(concept_audit)}
    return [{"concept": name, "verdict": None, "verdict_reason": None, **reason}]
