"""Write the steered texts of a run: whole or not at all, one table in memory at a time, the same bytes for one run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from poolbench.concepts import refuse_restricted
from poolbench.errors import NotFoundError
from poolbench_driver.dataset_folder import hub_header, render_card, write_release
from poolbench_driver.suites.poolbench.plan import SteeringStages
from poolbench_driver.suites.poolbench.release.source import Export
from poolbench_driver.suites.poolbench.release.texts import RELEASE, ReleaseTable, TextScores, sources

KIND = "poolbench-steered-outputs"
#: Openings that come from elsewhere.
OPENING_LICENCES = {"published-10": "MIT, copyright (c) 2026 PoolBench Authors"}

_FIELDS = {
    "text_id": "hash of what makes the text",
    "concept": "concept steered for; for unsteered texts the one whose scorer gave `score`",
    "strategy": "pooling strategy of the direction; `nulls` for null directions, `unsteered` at strength 0",
    "direction": "construction method of the direction, or number of the null direction",
    "strength": "in `alpha_unit`; 0 is unsteered",
    "alpha": "coefficient of the unit vector that was added",
    "opening": "text that was continued",
    "text": "generated part only",
    "score": "P(concept) of the text by the concept's classifier; null where there is none",
    "neighbour_scores": "the same by the classifiers of the concept's neighbours",
    "mean_nll": "mean negative log-likelihood under the unsteered model, nats a token",
    "vector_hash, positions_changed, positions_expected": "receipt: the vector that was added, and at how many "
    "positions out of those expected",
}


def export_steered_outputs(export: Export, output: Path) -> dict[str, Any]:
    """Write the steered texts of a finished run into `output` and return the manifest.

    Scores come from the run's tables. A part is one concept and strategy.

    Raises:
        InputError: `output` holds something else.
        NotFoundError: The run is not finished, or did not steer.
    """
    folder, stages = export.folder, export.plan.steering
    if stages is None:
        metrics = ", ".join(export.scope.config.metrics)
        raise NotFoundError(f"run {folder.id} measured {metrics} alone: it has no steered texts")
    scores = folder.read_table("text_scores")
    notes = scorer_notes(folder.read_table("results"))
    with export.writing(output, KIND) as partial:
        files, missing = {}, []
        for concept in export.concepts:
            name = f"data/{concept}.parquet"
            missing += _write_concept(partial / name, concept, export, stages, scores)
            files[name] = {"concept": concept, "num_rows": pq.read_metadata(partial / name).num_rows}
        facts = {**export.facts(KIND), "missing": missing}
        return write_release(partial, _card(export, files, notes), facts, files)


def _write_concept(
    file: Path, concept: str, export: Export, stages: SteeringStages, scores: pa.Table
) -> list[dict[str, str]]:
    """Write one concept's file; return the parts that the run does not have."""
    text_scores, rows, missing = _scores_of(scores, concept), ReleaseTable(export.scope), []
    file.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(file, RELEASE, compression="zstd") as writer:
        for source in sources(export.scope, stages, concept):
            try:
                refuse_restricted(source.strategy, (source.texts, source.fluency))
                tables = export.artifacts.read_table(source.texts), export.artifacts.read_table(source.fluency)
            except NotFoundError as error:
                missing.append({"concept": concept, "strategy": source.strategy, "reason": str(error)})
            else:
                writer.write_table(rows.of(concept, source.strategy, *tables, text_scores))
            export.on_part(1)
    return missing


def _scores_of(scores: pa.Table, concept: str) -> TextScores:
    """Return scores of a concept's texts and of the unsteered ones, by text id and scorer."""
    by_text: dict[str, dict[str, float | None]] = defaultdict(dict)
    if scores.num_rows:
        mask = pc.or_kleene(pc.equal(scores["concept"], concept), pc.is_null(scores["concept"]))
        for row in scores.filter(mask).select(["text_id", "scorer", "score"]).to_pylist():
            by_text[row["text_id"]][row["scorer"]] = row["score"]
    return by_text


def _card(export: Export, files: Mapping[str, Any], gates: Mapping[str, str]) -> str:
    """Return the card; `files` are the entries of the manifest, and `gates` the verdict on each concept's scorer."""
    configs = [(entry["concept"], name) for name, entry in files.items()]
    lead = (
        "Continuations of neutral openings by a language model whose residual stream was steered along the concept "
        "directions of several pooling strategies, as D2 and D3 of PoolBench read them. They are a model's output and "
        "may be false, offensive or repetitive. Its terms apply to them."
    )
    texts = (
        f"| {e['concept']} | `{name}` | {e['num_rows']} | {gates.get(e['concept'], 'none')} |"
        for name, e in files.items()
    )
    fields = (f"| `{name.replace(', ', '`, `')}` | {meaning} |" for name, meaning in _FIELDS.items())
    sections = [
        *("", "| concept | file | texts | scorer |", "|---|---|---|---|", *texts),
        *("", "## Fields", "", "| field | meaning |", "|---|---|", *fields),
        *("", "`manifest.json` holds size, rows and SHA-256 of every file, and what the run lacks."),
    ]
    return render_card(
        hub_header(export.licence, configs), "Steered texts", lead, export.origin(**_settings(export)), sections
    )


def _settings(export: Export) -> dict[str, str]:
    """Return how the texts were made."""
    scope = export.scope
    config, budget = scope.config, scope.config.budget
    decoding = "greedy"
    if config.steering.temperature != 0:
        decoding = f"{config.steering.num_samples} samples at temperature {config.steering.temperature:g}, "
        decoding += f"seed {config.seed}"
    opening_licence = OPENING_LICENCES.get(budget.opening_set, "Apache-2.0, this project")
    return {
        "steered after": f"block {scope.steering_layer}, {config.steering.positions} positions",
        "directions": f"{config.steering.direction}, and {budget.num_nulls} null directions a concept",
        "strengths": f"{', '.join(f'{s:g}' for s in budget.strengths)} (unit: {budget.alpha_unit})",
        "openings": f"{budget.num_openings} of {budget.opening_set} ({opening_licence})",
        "decoding": f"{decoding}, {budget.max_tokens} tokens at most",
    }


def scorer_notes(results: pa.Table) -> dict[str, str]:
    """Return for each concept whether its scorer passed the gate, from a run's results."""
    notes = {}
    for row in results.select(["metric", "scorer", "value", "params", "reason"]).to_pylist():
        if row["metric"] == "scorer.gate" and '"part": "verdict"' in (row["params"] or ""):
            notes[row["scorer"]] = "passed its gate" if row["value"] == 1 else f"invalid: {row['reason']}"
    return notes
