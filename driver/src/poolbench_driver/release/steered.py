"""Write the steered texts of a run: whole or not at all, one table in memory at a time, the same bytes for one run."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from poolbench.errors import NotFoundError
from poolbench_driver.dataset_folder import write_release
from poolbench_driver.release.source import Export, require_public
from poolbench_driver.release.steered_card import scorer_notes, steered_card
from poolbench_driver.release.texts import RELEASE, ReleaseTable, TextKeys, TextScores, sources
from poolbench_driver.suites.poolbench.plan import SteeringStages

KIND = "poolbench-steered-outputs"


def export_steered_outputs(export: Export, output: Path) -> dict[str, Any]:
    """Write the steered texts of a finished run into `output` and return the manifest.

    Scores come from the run's tables, so that nothing restricted is read. A part is one concept and strategy.

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
        return write_release(partial, steered_card(export, files, notes), facts, files)


def _write_concept(
    file: Path, concept: str, export: Export, stages: SteeringStages, scores: pa.Table
) -> list[dict[str, str]]:
    """Write one concept's file; return the parts that the run does not have."""
    found, rows, missing = _scores_of(scores, concept), ReleaseTable(export.scope), []
    file.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(file, RELEASE, compression="zstd") as writer:
        for source in sources(export.scope, stages, concept):
            try:
                tables = _tables(export, source)
            except NotFoundError as error:
                missing.append({"concept": concept, "strategy": source.strategy, "reason": str(error)})
            else:
                writer.write_table(rows.of(concept, source.strategy, *tables, found))
            export.on_part(1)
    return missing


def _tables(export: Export, source: TextKeys) -> tuple[pa.Table, pa.Table]:
    """Return texts and fluency; restricted keys are refused before they are looked up."""
    require_public(source.strategy, (source.texts, source.fluency))
    return export.artifacts.read_table(source.texts), export.artifacts.read_table(source.fluency)


def _scores_of(scores: pa.Table, concept: str) -> TextScores:
    """Return scores of a concept's texts and of the unsteered ones, by text id and scorer."""
    by_text: dict[str, dict[str, float | None]] = defaultdict(dict)
    if scores.num_rows:
        wanted = pc.or_kleene(pc.equal(scores["concept"], concept), pc.is_null(scores["concept"]))
        for row in scores.filter(wanted).select(["text_id", "scorer", "score"]).to_pylist():
            by_text[row["text_id"]][row["scorer"]] = row["score"]
    return by_text
