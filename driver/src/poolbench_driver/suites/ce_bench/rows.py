"""From the contrasts of a run to its tables: a row for each entrant and figure, and the subjects."""

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from poolbench.concepts import CONCEPTS
from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.steps.base import Keys
from poolbench_driver.contract.source import RowSource, measured
from poolbench_driver.contract.suite import Tables
from poolbench_driver.records.features import FEATURES, FEATURES_SCHEMA
from poolbench_driver.suites.ce_bench.concepts import concept_rows
from poolbench_driver.suites.ce_bench.metrics import LOG_WIDTH, MINUS_L0, PRIMARY, RECOVERED
from poolbench_driver.suites.ce_bench.plan import Autoencoder, CeBenchPlan, SparseCell


def assemble(plan: CeBenchPlan, source: RowSource) -> Tables:
    """Return result rows, figures by the published definition, and tables of entrants, subjects and stories."""
    saes = {sae.name: sae for sae in plan.scope.saes}
    rows: dict[str, list[Row]] = {"corrected": [], "published": []}
    subjects, entrants, features = list[Row](), list[Row](), list[pa.Table]()
    for at, keys in plan.contrasts.items():
        rows[at.protocol] += _measures(PRIMARY, at, keys["measures"], source, saes.get(at.sae))
        if at.protocol == "corrected":
            if at.entrant in plan.recovered:
                rows[at.protocol] += _measures(RECOVERED, at, plan.recovered[at.entrant], source, saes.get(at.sae))
            entrants.append(_entrant(at, saes.get(at.sae)))
            subjects += [{"entrant": at.entrant, **row} for row in source.rows(keys["subjects"])]
            features += _features(at, keys, source)
    rows["corrected"] += concept_rows(plan.concepts, source)
    rows["corrected"] += concept_rows(plan.sets, source, "task")
    others = {"subjects": subjects, "entrants": entrants, "stories": _stories(plan)}
    by_feature = {FEATURES: pa.concat_tables([FEATURES_SCHEMA.empty_table(), *features])}
    return Tables(rows["corrected"], others | by_feature, {"published": rows["published"]})


def _entrant(at: SparseCell, sae: Autoencoder | None) -> Row:
    trained = sae if at.kind == "autoencoder" else None
    return {
        "entrant": at.entrant,
        "kind": at.kind,
        "layer": at.layer,
        "null_of": at.sae if at.kind == "random" else None,  # the autoencoder that random directions stand beside
        "architecture": trained and trained.architecture,
        "autoencoder": trained and trained.id,
        "key": trained and trained.step.key,  # in the object store
        "family": trained and trained.family,
        "seed": trained and trained.seed,
    }


def _measures(metric: str, at: SparseCell, key: str, source: RowSource, sae: Autoencoder | None) -> Iterator[Row]:
    """Yield the figures of one entrant, and two scores of size alone, which a score should beat.

    Without a table, `metric` is null.
    """
    identity = {"entrant": at.entrant, "layer": at.layer, "params": {"autoencoder": sae.id} if sae else {}}
    for row in measured(metric, key, identity, source, split=None):
        yield row
        if row["metric"] == "ce.l0" and row["value"] is not None:
            yield {**Measure.of(MINUS_L0, -row["value"], n=row["n"]).to_row(), **identity}
        if row["metric"] == "ce.num_features":
            yield {**Measure.of(LOG_WIDTH, math.log2(row["value"])).to_row(), **identity}


def _features(at: SparseCell, keys: Keys, source: RowSource) -> Iterator[pa.Table]:
    """Yield the features of an autoencoder by subject, with its name."""
    table = source.table(keys["features"]) if "features" in keys else None
    if isinstance(table, pa.Table):
        names = pa.array([at.entrant], pa.string()).take(pa.array(np.zeros(len(table), int)))
        yield table.add_column(0, "autoencoder", names).cast(FEATURES_SCHEMA)


def _stories(plan: CeBenchPlan) -> list[Row]:
    """Return the first pair of stories of each subject that is not a sensitive concept; the page opens one of them."""
    stories = plan.scope.stories
    texts = {row["passage_id"]: row for row in stories.passages.to_pylist()}
    sensitive = {concept.id for concept in CONCEPTS.all() if concept.sensitive}
    first_pairs: dict[str, Row] = {}
    for row in stories.rows.to_pylist():
        if row["subject"] in sensitive:
            continue
        first, second = texts[row["first"]], texts[row["second"]]
        first_pairs.setdefault(
            row["subject"],
            {
                "subject": row["subject"],
                "first": first["text"],
                "second": second["text"],
                "first_marks": first["marks"],
                "second_marks": second["marks"],
            },
        )
    return list(first_pairs.values())
