"""Write a release: whole or not at all, one table in memory at a time, the same bytes for the same run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from poolbench import __version__
from poolbench.concepts import CONCEPTS
from poolbench.contracts.keys import is_restricted
from poolbench.errors import InputError, NotFoundError, RestrictedError
from poolbench.storage import Artifacts
from poolbench_driver.plan import PoolBenchPlan, Scope, SteeringStages
from poolbench_driver.release.card import dataset_card, scorer_notes
from poolbench_driver.release.texts import RELEASE, ReleaseTable, TextKeys, TextScores, sources
from poolbench_driver.rundir import RunFolder

MANIFEST = "manifest.json"
KIND = "poolbench-steered-outputs"
RELEASE_VERSION = 1


def releasable_concepts(measured: Sequence[str], asked: Sequence[str] | None) -> list[str]:
    """Return the requested concepts, or all measured ones that are not sensitive.

    Raises:
        RestrictedError: A sensitive concept is named, or the run has no others.
        NotFoundError: The run did not measure one.
    """
    chosen = [CONCEPTS.get(name) for name in (measured if asked is None else asked)]
    sensitive = [concept.id for concept in chosen if concept.sensitive]
    if asked is not None and sensitive:
        raise RestrictedError(f"{', '.join(sensitive)}: steered texts of sensitive concepts are never exported")
    unknown = [concept.id for concept in chosen if concept.id not in measured]
    if unknown:
        raise NotFoundError(f"the run did not measure {', '.join(unknown)}; it has {', '.join(measured)}")
    if len(sensitive) == len(chosen):
        raise RestrictedError(f"the run measured sensitive concepts only ({', '.join(sensitive)}): nothing to export")
    return [concept.id for concept in chosen if not concept.sensitive]


def export_steered_outputs(
    folder: RunFolder,
    plan: PoolBenchPlan,
    artifacts: Artifacts,
    output: Path,
    *,
    concepts: Sequence[str],
    licence: str,
    on_part: Callable[[int], object] = lambda parts: None,
) -> dict[str, Any]:
    """Write the release of a finished run into `output` and return its manifest.

    Args:
        folder: The run; scores come from its tables, so that nothing restricted is read.
        output: A folder that does not exist, is empty, or holds an earlier release, which is replaced.
        on_part: Called with 1 after each (concept, strategy).

    Raises:
        InputError: `output` holds something else.
        NotFoundError: The run is not finished, or did not steer.
    """
    scope, stages = plan.scope, plan.steering
    if stages is None:
        raise NotFoundError(
            f"run {folder.id} measured {', '.join(scope.config.metrics)} alone: it has no steered texts"
        )
    output = output.resolve()
    scores = folder.read_table("text_scores")
    notes = scorer_notes(folder.read_table("results"))
    _require_ours(output)
    with _replacing(output) as partial:
        files, missing = {}, []
        for concept in concepts:
            name = f"data/{concept}.parquet"
            lacking = _write_concept(partial / name, concept, scope, stages, artifacts, scores, on_part)
            files[name] = {"concept": concept, "num_rows": pq.read_metadata(partial / name).num_rows}
            missing += lacking
        (partial / "README.md").write_text(dataset_card(scope, files, licence, notes), "utf-8")
        manifest = _manifest(folder, scope, partial, files, missing, licence)
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return manifest


def _write_concept(
    file: Path,
    concept: str,
    scope: Scope,
    stages: SteeringStages,
    artifacts: Artifacts,
    scores: pa.Table,
    on_part: Callable[[int], object],
) -> list[dict[str, str]]:
    """Write one concept's file; return the parts that the run does not have."""
    found, rows, missing = _scores_of(scores, concept), ReleaseTable(scope), []
    file.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(file, RELEASE, compression="zstd") as writer:
        for source in sources(scope, stages, concept):
            try:
                tables = _tables(artifacts, source)
            except NotFoundError as error:
                missing.append({"concept": concept, "strategy": source.strategy, "reason": str(error)})
            else:
                writer.write_table(rows.of(concept, source.strategy, *tables, found))
            on_part(1)
    return missing


def _tables(artifacts: Artifacts, source: TextKeys) -> tuple[pa.Table, pa.Table]:
    """Return texts and fluency; restricted keys are refused before they are looked up."""
    for key in (source.texts, source.fluency):
        if is_restricted(key):
            raise RestrictedError(f"{source.strategy}: artifact {key} is restricted and never exported")
    return artifacts.read_table(source.texts), artifacts.read_table(source.fluency)


def _scores_of(scores: pa.Table, concept: str) -> TextScores:
    """Return scores of a concept's texts and of the unsteered ones, by text id and scorer."""
    by_text: dict[str, dict[str, float | None]] = defaultdict(dict)
    if scores.num_rows:
        wanted = pc.or_kleene(pc.equal(scores["concept"], concept), pc.is_null(scores["concept"]))
        for row in scores.filter(wanted).select(["text_id", "scorer", "score"]).to_pylist():
            by_text[row["text_id"]][row["scorer"]] = row["score"]
    return by_text


def _manifest(
    folder: RunFolder, scope: Scope, partial: Path, files: dict[str, Any], missing: list[dict[str, str]], licence: str
) -> dict[str, Any]:
    for name in ["README.md", *files]:
        content = (partial / name).read_bytes()
        files.setdefault(name, {})
        files[name] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return {
        "kind": KIND,
        "version": RELEASE_VERSION,
        "run_id": folder.id,
        "config_hash": scope.config.config_hash(),
        "code_version": __version__,
        "model": scope.model.ref.id,
        "model_revision": scope.model.ref.revision,
        "licence": licence,
        "files": files,
        "missing": missing,
    }


def _require_ours(output: Path) -> None:
    """Raise InputError if `output` is anything but an earlier release, empty or absent."""
    if not output.exists():
        return
    if not output.is_dir():
        raise InputError(f"{output} is a file; name a folder for the release")
    if not any(output.iterdir()):
        return
    try:
        kind = json.loads((output / MANIFEST).read_text("utf-8")).get("kind")
    except (OSError, ValueError, AttributeError):
        kind = None
    if kind != KIND:
        raise InputError(f"{output} holds other files; name a new folder, or one that a release lies in")


@contextmanager
def _replacing(output: Path) -> Iterator[Path]:
    """Yield a folder beside `output` that replaces it on success, and is removed otherwise."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}.{os.getpid()}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        old = output.with_name(f".{output.name}.{os.getpid()}.old")
        if output.exists():
            output.rename(old)
        partial.rename(output)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
