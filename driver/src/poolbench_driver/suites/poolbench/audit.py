"""The audit of a run's corpora, and D1 beyond the best confound of each.

Both are computed here, from committed passages and scores of D1: no task is repeated, and no key moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import pyarrow as pa

from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import PASSAGES, require_columns
from poolbench.errors import CellError, InputError
from poolbench.statistics.auroc import auroc_resamples
from poolbench.statistics.bootstrap import group_weights, percentile_interval
from poolbench.statuses import Status
from poolbench.steps.roles import Cell
from poolbench_corpora.audit import Audit, audit
from poolbench_driver.contract.source import RowSource
from poolbench_driver.results import AUDIT_SCHEMA
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.suites.poolbench.d1 import identity_of

METRIC = "d1.excess_over_confound"
EXCESS_CI_METHOD = "paired bootstrap over groups, percentile, conditional on the fits and on the confound"


@dataclass(frozen=True)
class Audits:
    """The audits of the concepts of a run. A concept without an audit has an error with the reason instead."""

    plan: ConceptsPlan
    source: RowSource
    by_concept: Mapping[str, Audit | CellError]

    @classmethod
    def of(cls, plan: ConceptsPlan, source: RowSource) -> Audits:
        """Audit the train and test passages of each measured concept. D1 reads the same passages."""
        config, audits = plan.scope.config, dict[str, Audit | CellError]()
        for name, vectors in plan.vectors.concepts.items():
            try:
                tables = [source.required(vectors.passages[split]) for split in ("train", "test")]
                for table in tables:
                    require_columns(table, PASSAGES, "the passages")
            except CellError as error:
                audits[name] = error
            except InputError as error:
                audits[name] = CellError(Status.FAILED, str(error))
            else:
                passages = pa.concat_tables(table.replace_schema_metadata(None) for table in tables)
                num_bootstrap = config.budget.num_bootstrap
                audits[name] = audit(vectors.concept, passages, seed=config.seed, num_bootstrap=num_bootstrap)
        return cls(plan, source, audits)

    def rows(self) -> Iterator[Row]:
        """Yield `d1.excess_over_confound` of every strategy at every layer of each concept."""
        scope = self.plan.scope
        seed = scope.config.seed
        for name, probes in self.plan.probes.concepts.items():
            baseline = _baseline(self.by_concept[name], scope.config.budget.num_bootstrap, seed)
            for spec, layer in product(scope.strategies, scope.layers):
                try:
                    table = self.source.required(probes.scores[Cell(spec.id, layer)])
                    if isinstance(baseline, CellError):
                        raise baseline
                    measure = baseline.excess(table).with_fields(seed=seed)
                except CellError as error:
                    measure = Measure.failed(METRIC, error, seed=seed)
                yield {**identity_of(name, spec.id, layer), **measure.to_row()}

    def table(self) -> pa.Table:
        """Return the audits as a table with one row per check. A concept without an audit has one row with a reason."""
        rows = list[Row]()
        for name, concept_audit in self.by_concept.items():
            if isinstance(concept_audit, Audit):
                rows += concept_audit.rows()
            else:
                rows.append({"concept": name, "status": concept_audit.status.value, "reason": str(concept_audit)})
        return pa.Table.from_pylist(rows, AUDIT_SCHEMA)


@dataclass(frozen=True)
class _Baseline:
    """The confound of a corpus that separates the classes best, with which the probes of cells are compared."""

    audit: Audit
    name: str
    scores: np.ndarray
    weights_Rn: np.ndarray
    position: Mapping[str, int]

    def excess(self, table: pa.Table) -> Measure:
        """Return the AUROC of a probe minus the AUROC of the confound, from PROBE_SCORES of the probe.

        Raises:
            CellError: The table has no scores of train passages, or its passages, labels or folds differ from the
                audit.
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
        weights_Rn, groups = self.weights_Rn[:, at], training.groups[at]
        return excess_over_confound(labels, scores, self.scores[at], folds, weights_Rn, groups, confound=self.name)


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
    return _Baseline(concept_audit, best.name, best.scores, weights_Rn, position)


def excess_over_confound(
    labels: np.ndarray,
    scores: np.ndarray,
    confound_scores: np.ndarray,
    folds: np.ndarray,
    weights_Rn: np.ndarray,
    groups: np.ndarray,
    *,
    confound: str,
) -> Measure:
    """Return the AUROC of the concept's probe minus the AUROC of the confound's probe.

    Both AUROCs use the same folds and the same bootstrap resamples. The result is null if a score is NaN, or if all
    passages have one label.

    Args:
        labels: 1 positive, 0 negative [n].
        scores: Out-of-fold scores of D1's probe [n]. Any NaN means that the probe did not converge.
        confound_scores: Out-of-fold scores of the confound's probe on the same folds [n].
        folds: Fold of each passage [n]. Only pairs of passages within a fold are compared.
        weights_Rn: Bootstrap weights over the groups [R, n].
        groups: Groups of the passages [n].
        confound: Name of the confound.
    """
    n, num_groups = len(labels), len(np.unique(groups))
    if np.isnan(scores).any():
        reason = "a probe did not reach its tolerance"
        return Measure.null(METRIC, Status.NOT_CONVERGED, reason, n=n, num_groups=num_groups)
    if len(np.unique(labels)) < 2:
        reason = "the scored passages are all of one class"
        return Measure.null(METRIC, Status.ONE_CLASS, reason, n=n, num_groups=num_groups)
    weights_Rn = np.vstack([np.ones_like(weights_Rn[:1], shape=(1, len(labels))), weights_Rn])
    auroc, other = (auroc_resamples(labels, probe, weights_Rn, folds, groups) for probe in (scores, confound_scores))
    gap = auroc - other
    return Measure.of(
        METRIC,
        gap[0],
        percentile_interval(gap[1:]),
        ci_method=EXCESS_CI_METHOD,
        details={"confound": confound, "confound_auroc": float(other[0])},
        n=n,
        num_groups=num_groups,
    )
