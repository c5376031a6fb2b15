"""Write the steered texts of a run with settings, scores and receipts: all or none, and the same bytes for one run."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from poolbench.concepts import CONCEPTS, refuse_restricted
from poolbench.contracts.tables import table_from_rows
from poolbench.contracts.wire import NULLS, UNSTEERED
from poolbench.errors import NotFoundError, ReceiptError
from poolbench_driver.config import ALONG
from poolbench_driver.dataset_folder import hub_header, write_release
from poolbench_driver.imports.steered_texts import RELEASE, exported_file
from poolbench_driver.release.source import Export
from poolbench_driver.stages.plan import SteeringStages
from poolbench_driver.stages.scope import Scope

#: Scores of one text by scorer.
TextScores = Mapping[str, Mapping[str, float | None]]


def release_table(
    scope: Scope, concept: str, strategy: str, texts: pa.Table, fluency: pa.Table, scores: TextScores
) -> pa.Table:
    """Return RELEASE rows of one concept and strategy. Raise ReceiptError if a text has no valid receipt."""
    common = {
        "model": scope.model.ref.id,
        "model_revision": scope.model.ref.revision,
        "layer": scope.steering_layer,
        "alpha_unit": scope.config.budget.alpha_unit,
        "positions": scope.config.steering.positions,
        "temperature": scope.config.steering.temperature,
        "concept": concept,
        "strategy": strategy,
        "strategy_version": next(
            (spec.version for spec in scope.strategies if spec.id == strategy.partition(ALONG)[0]), None
        ),
    }
    neighbours = sorted({*CONCEPTS.get(concept).neighbours} - {concept})
    nll = dict(zip(fluency["text_id"].to_pylist(), fluency["mean_nll"].to_pylist(), strict=True))
    rows = []
    for row in texts.to_pylist():
        text_scores = scores.get(row["text_id"], {})
        others = [{"scorer": name, "score": text_scores[name]} for name in neighbours if name in text_scores]
        rows.append({**row, **common, **_steering(row), "score": text_scores.get(concept), "neighbour_scores": others})
        rows[-1] |= {"opening_id": row["prompt_id"], "opening": row["prompt"], "mean_nll": nll.get(row["text_id"])}
    return table_from_rows(rows, RELEASE)


def _steering(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the direction of a text. Raise ReceiptError if its receipt is missing or wrong."""
    if row["direction_key"] == UNSTEERED:
        return {"direction": None, "vector_hash": None}
    changed, expected = row["positions_changed"], row["positions_expected"]
    if not row["vector_hash"] or not expected or changed != expected:
        raise ReceiptError(
            f"text {row['text_id']} ({row['direction_key']}, strength {row['strength']:g}) has no valid receipt: "
            f"{changed} of {expected} positions, vector {row['vector_hash'] or 'unknown'}"
        )
    return {"direction": row["direction_key"].rpartition("/")[2]}


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
    scores = folder.tables["text_scores"]
    notes = scorer_notes(folder.tables["results"])
    with export.writing(output, KIND) as partial:
        files, missing = {}, []
        for concept in export.concepts:
            name = exported_file(concept)
            missing += _write_concept(partial / name, concept, export, stages, scores)
            files[name] = {"concept": concept, "num_rows": pq.read_metadata(partial / name).num_rows}
        facts = {**export.facts(KIND), "missing": missing}
        return write_release(partial, _card(export, files, notes), facts, files)


def _write_concept(
    file: Path, concept: str, export: Export, stages: SteeringStages, scores: pa.Table
) -> list[dict[str, str]]:
    """Write one concept's file. Return the parts that the run does not have."""
    by_text: dict[str, dict[str, float | None]] = defaultdict(dict)
    if scores.num_rows:
        mask = pc.or_kleene(pc.equal(scores["concept"], concept), pc.is_null(scores["concept"]))
        for row in scores.filter(mask).select(["text_id", "scorer", "score"]).to_pylist():
            by_text[row["text_id"]][row["scorer"]] = row["score"]
    text_scores, missing = by_text, list[dict[str, str]]()
    keys = {UNSTEERED: stages.unsteered.texts, **stages.texts.concepts[concept].texts}
    file.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(file, RELEASE, compression="zstd") as writer:
        for strategy in (UNSTEERED, *(name for name in keys if name not in (UNSTEERED, NULLS)), NULLS):
            try:
                refuse_restricted(strategy, keys[strategy])
                texts, fluency = (export.artifacts.read_table(key) for key in keys[strategy])
            except NotFoundError as error:
                missing.append({"concept": concept, "strategy": strategy, "reason": str(error)})
            else:
                writer.write_table(release_table(export.scope, concept, strategy, texts, fluency, text_scores))
            export.on_part(1)
    return missing


def _card(export: Export, files: Mapping[str, Any], gates: Mapping[str, str]) -> str:
    """Return the card. `files` has the entries of the manifest, and `gates` the verdict on each concept's scorer."""
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
    return export.card("Steered texts", lead, sections, hub_header(export.licence, configs), **_settings(export))


def _settings(export: Export) -> dict[str, str]:
    """Return the settings of generation of the texts."""
    scope = export.scope
    config, budget = scope.config, scope.config.budget
    decoding = "greedy"
    if config.steering.temperature != 0:
        decoding = f"{config.steering.num_samples} samples at temperature {config.steering.temperature:g}, "
        decoding += f"seed {config.seed}"
    opening_licence = OPENING_LICENCES.get(budget.opening_set, "Apache-2.0, this project")
    return {
        "steered after": f"block {scope.steering_layer}, {config.steering.positions} positions",
        "directions": f"{', '.join(config.steering.directions)}, and {budget.num_nulls} null directions a concept",
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
