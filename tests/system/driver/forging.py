"""A small run with its bundle, and what a forger may do with it."""

import subprocess
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from driver.tests.conftest import BUDGET, SteeredArtifacts
from driver.tests.loop_bench import FAST, Bench, Notes, job_of

from poolbench.contracts.measures import Measure, measures_table, to_rows
from poolbench.contracts.tables import MEASURES, PROBE_SCORES, table_from_rows
from poolbench.pooling.registry import select_strategies
from poolbench_driver.assemble import rank_rows
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.dataset_folder import CHECKSUMS, files_below, sha256_of, write_checksums
from poolbench_driver.models import annotator_version, describe_model
from poolbench_driver.records import Run
from poolbench_driver.records.folder import create_run, write_manifest, write_table
from poolbench_driver.results import result_table, results_digest
from poolbench_driver.sharing import bundle as bundles
from poolbench_driver.sharing.rerun import Rerun
from poolbench_driver.sharing.signatures import sign
from poolbench_driver.stages.plan import ConceptsPlan, make_plan
from poolbench_driver.stages.probes import ConceptProbes, probe_params
from poolbench_driver.stages.scope import Scope
from poolbench_driver.suites.poolbench import verification as of_suite
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors

SETTINGS: dict[str, Any] = {
    "preset": "demo",
    "concepts": ["contrast", "toxicity"],
    "strategies": ["A1_mean", "W4_hierarchical:remainder=true"],
    "layers": [2],
    "steering_layer": 2,
    "budget": {**BUDGET, "num_train": 60, "num_test": 40, "num_scorer": 8, "num_nulls": 20},
}
SLOPES = {"contrast": 0.8, "toxicity": 0.6}


class Probed(SteeredArtifacts):
    """Artifacts whose measures and scores of passages are those of the prober, on vectors with a signal."""

    def write(self, score: Any, *, gate: float = 1.0) -> "Probed":
        """Write everything; the gates of scorers have all their parts."""
        super().write(score, gate=gate)
        steering = self.plan.steering
        assert steering is not None
        limits = {"a": {"min_lower": 0.75}, "b": {"min_lower": 0.6}}
        above = [Measure.of("scorer.gate", 0.95, (0.9, 0.97), params={"part": part, **limits[part]}) for part in "ab"]
        below = [
            Measure.of("scorer.gate", 0.1, (0.05, 0.2), params={"part": "c", "texts": kind, "of": of, "max_upper": 0.5})
            for kind in ("shuffled", "looping")
            for of in ("both", "negatives")
        ]
        for keys in steering.scorers.concepts.values():
            old = self.artifacts.read_table(keys.gate)
            self.artifacts.delete(keys.gate)
            parts = table_from_rows(to_rows([*above, *below]), MEASURES)
            self.artifacts.write_table(keys.gate, pa.concat_tables([parts, old]))
        return self

    def probes(self, probes: ConceptProbes) -> None:
        concept = probes.concept.id
        keys, scope = self.plan.vectors.concepts[concept].passages, self.plan.scope
        tables = {split: self.plan.local[keys[split]].build() for split in ("train", "test")}
        train, test = (Passages.from_table(tables[split]) for split in ("train", "test"))
        params = probe_params(scope, concept, 2)
        design = Design.build(train, test, params)
        for number, (cell, key) in enumerate(probes.measures.items()):
            rng = np.random.default_rng([number, len(concept)])
            vectors = [
                PooledVectors.from_matrix(
                    rng.normal(size=(len(part.ids), 4)) + 0.5 * (1 + number) * part.labels[:, None]
                )
                for part in (train, test)
            ]
            if concept == "contrast" and number:
                vectors[0].matrix_nW[5] = np.nan
                vectors[0] = PooledVectors.from_matrix(vectors[0].matrix_nW)
            result = probe_cell(design, *vectors, params)
            self.artifacts.write_table(key, measures_table(result.measures))
            self.artifacts.write_table(probes.scores[cell], table_from_rows(result.scores, PROBE_SCORES))
        self.directions(probes.directions.values())


def rising(key: str, opening: int, strength: float, scorer: str) -> float:
    slope = 0.05 if "null" in key else SLOPES.get(scorer, 0.1)
    return 0.1 + 0.01 * opening + slope * strength * (1 + 0.1 * (opening % 3))


class Made(NamedTuple):
    """A finished run, its bundle, and the key that signed it."""

    bench: Bench
    plan: ConceptsPlan
    folder: Run
    bundle: Path
    key: Path
    signers: Path


def make(root: Path, **settings: Any) -> Made:
    """Measure a small run with real probes, and pack and sign it. Further settings replace those of `SETTINGS`."""
    config = load_run_config(None, SETTINGS | settings)
    model = describe_model(config, None)  # type: ignore[arg-type]  # a local model: no service is asked
    specs = tuple(select_strategies(SETTINGS["strategies"]))
    plan = make_plan(Scope(config, model, specs, annotator_version(config.annotator)))
    artifacts = Probed(root / "store", plan).write(rising).artifacts
    for key in plan.producers:
        if not artifacts.exists(key):
            artifacts.write_table(key, pa.table({"unread": [1]}))
    bench = Bench(root)
    bench.artifacts = artifacts
    folder = create_run(root / "runs", plan.config)
    assert job_of(bench, plan).run(folder, bench.notes).digest and not bench.notes.finished
    key, signers = root / "key", root / "signers"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", key], check=True)
    signers.write_text(f"me@example.org {(root / 'key.pub').read_text()}")
    bundle = root / "bundle.zip"
    bundles.submit(
        folder, artifacts, plan.keys, bundle, key=key, licence="cc-by-4.0", command="poolbench-driver submit"
    )
    return Made(bench, plan, folder, bundle, key, signers)


def rerun_of(made: Made, count: int = 99, draw: int = 0) -> Rerun:
    session = job_of(made.bench, made.plan).session
    return Rerun(count, draw, lambda: session, Notes, FAST)


Edit = Callable[[Run, Path], object]


def forged(made: Made, place: Path, edit: Edit, *, consistent: bool = True, key: Path | None = None) -> Path:
    """A bundle with something changed; a consistent forger writes all digests again and signs, with a key of theirs."""
    root = place / "forged"
    with zipfile.ZipFile(made.bundle) as archive:
        archive.extractall(root)
    folder = Run(root / made.folder.id)
    edit(folder, root)
    if consistent:
        facts = {"config_hash": made.plan.config.config_hash()}
        write_manifest(folder, **facts, results_digest=results_digest(folder.read_table("results")))
        (root / f"{CHECKSUMS}.sig").unlink()
        write_checksums(root, {name: sha256_of(root / name) for name in files_below(root) if name != CHECKSUMS})
        sign(root / CHECKSUMS, key or made.key)
    bundles.pack(root, place / "forged.zip")
    return place / "forged.zip"


def contents_of(bundle: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def in_results(change: Callable[[list[dict[str, Any]]], object]) -> Edit:
    def edit(folder: Run, root: Path) -> None:
        rows = folder.read_table("results").to_pylist()
        rows = change(rows) or rows
        write_table(folder, "results", result_table(rows))  # type: ignore[arg-type]

    return edit


def in_table(name: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Edit:
    def edit(folder: Run, root: Path) -> None:
        table = folder.read_table(name)
        rows = [row for row in map(change, table.to_pylist()) if row is not None]
        write_table(folder, name, pa.Table.from_pylist(rows, table.schema))

    return edit


def first(rows: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return next(row for row in rows if all(row[name] == value for name, value in fields.items()))


def follow(folder: Run) -> None:
    """Write each figure again that scores give, with ranks and boards, so that nothing contradicts the scores."""
    rows: list[dict[str, Any]] = folder.read_table("results").to_pylist()
    config: Any = folder.config
    scored: Any = {}
    for row in folder.read_table("passage_scores").to_pylist():
        cell = scored.setdefault((row["concept"], row["split"], row["strategy"], row["layer"]), ({}, []))
        cell[0][row["passage_id"]] = row["label"], row["group"], row["fold"]
        cell[1].append(row["score"])
    passages: Any = defaultdict(dict)
    for (name, split, *_), (of_cell, _) in scored.items():
        passages[name, split].update(of_cell)
    texts: Any = defaultdict(list)
    for row in folder.read_table("text_scores").to_pylist():
        texts[row["concept"], row["name"]].append(row)
    write_again(rows, of_suite._d1(config, scored, passages, lambda line: None))
    write_again(rows, of_suite.concept_check_rows(rows))
    write_again(rows, of_suite._steered(config, rows, texts, lambda line: None))
    rows = [row for row in rows if row["metric"] != "rank.mean"]
    ranks, boards, pairs = rank_rows(rows, SUITES.get("poolbench").board)
    for name, part in (("boards", boards), ("pairwise", pairs)):
        write_table(folder, name, pa.Table.from_pylist(part, folder.read_table(name).schema))
    stored = [row for row in folder.read_table("results").to_pylist() if row["metric"] == "rank.mean"]
    by_entrant = {(row["strategy"], row["params"]): row for row in stored}
    rows += [{**by_entrant[row["strategy"], row["params"]], **row} for row in ranks]
    write_table(folder, "results", result_table(rows))


def write_again(rows: list[dict[str, Any]], again: Any) -> None:
    """Replace figures by those that were computed again, where they can be."""
    ours = {cell_of(row): row for row in again}
    for row in rows:
        new = ours.get(cell_of(row))
        if row["value"] is not None and new is not None and of_suite.is_of_scores(row["metric"]):
            row.update({name: new[name] for name in FOLLOWS if name in new})


FOLLOWS = ("value", "ci_low", "ci_high", "n", "num_groups", "status", "reason")


def cell_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("metric", "strategy", "concept", "layer", "neighbour", "direction"))
