"""Bundles: a run with D1 of real probes is packed, holds, and no forgery of it does; pushed, it is pulled the same."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import mlcroissant
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from driver.tests.conftest import BUDGET, SteeredArtifacts
from driver.tests.loop_bench import FAST, Bench, Notes, job_of
from driver.tests.test_sharing import failed

from poolbench.concepts import CONCEPTS
from poolbench.contracts.measures import measures_table
from poolbench.contracts.results import result_table, results_digest
from poolbench.contracts.tables import PROBE_SCORES, table_from_rows
from poolbench.contracts.tasks import Task
from poolbench.errors import InputError, IntegrityError, NotFoundError, RestrictedError
from poolbench.pooling.registry import select_strategies
from poolbench.worker.taskio import TaskIO
from poolbench_driver.assemble import rank_rows
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.verification import Check, State
from poolbench_driver.corpora.sources import passages_step
from poolbench_driver.dataset_folder import CHECKSUMS, files_below, sha256_of, write_checksums
from poolbench_driver.job import Job
from poolbench_driver.models import annotator_version, describe_model
from poolbench_driver.records import RunFolder
from poolbench_driver.records.record import encode_keys
from poolbench_driver.sharing import bundle as bundles
from poolbench_driver.sharing.board import build
from poolbench_driver.sharing.exchange import pull, push
from poolbench_driver.sharing.rerun import Rerun, part_of
from poolbench_driver.sharing.signatures import sign
from poolbench_driver.sharing.verification import Verdict, verify
from poolbench_driver.stages.probes import ConceptProbes, probe_params
from poolbench_driver.stages.scope import Scope
from poolbench_driver.suites.poolbench import verification as of_suite
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan, make_plan
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
    plan: PoolBenchPlan
    folder: RunFolder
    bundle: Path
    key: Path
    signers: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("sharing")
    config = load_run_config(None, SETTINGS)
    model = describe_model(config, None)  # type: ignore[arg-type]  # a local model: no service is asked
    specs = tuple(select_strategies(SETTINGS["strategies"]))
    plan = make_plan(Scope(config, model, specs, annotator_version(config.annotator)))
    artifacts = Probed(root / "store", plan).write(rising).artifacts
    for key in plan.producers:
        if not artifacts.exists(key):
            artifacts.write_table(key, pa.table({"unread": [1]}))
    bench = Bench(root)
    bench.artifacts = artifacts
    folder = RunFolder.create(root / "runs", plan.config)
    assert job_of(bench, plan).run(folder, bench.notes).digest and not bench.notes.finished
    key, signers = root / "key", root / "signers"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", key], check=True)
    signers.write_text(f"me@example.org {(root / 'key.pub').read_text()}")
    bundle = root / "bundle.zip"
    bundles.submit(
        folder, artifacts, plan.keys, bundle, key=key, licence="cc-by-4.0", command="poolbench-driver submit"
    )
    return Made(bench, plan, folder, bundle, key, signers)


def rerun_of(made: Made, count: int = 99) -> Rerun:
    session = job_of(made.bench, made.plan).session
    return Rerun(count, lambda: session, Notes, FAST)


@pytest.fixture
def planned(made: Made) -> Iterator[None]:
    with patch("poolbench_driver.sharing.rerun.prepare_all", lambda configs, session: [Job(made.plan, session)]):
        yield


def test_a_rerun_that_compares_nothing_shows_nothing(made: Made, planned: None) -> None:
    verdict = verify(made.bundle, signers=made.signers, rerun=rerun_of(made, 0))
    assert verdict.stages[-1].stage == "rerun" and verdict.stages[-1].state == State.UNCHECKED and not verdict.holds


def test_the_bundle_of_a_run_holds_in_every_stage(made: Made, planned: None) -> None:
    verdict = verify(made.bundle, signers=made.signers, rerun=rerun_of(made))
    states = {check.stage: (check.state, check.note) for check in verdict.stages}
    assert {state for state, _ in states.values()} == {State.PASSED}, states
    assert list(states) == [
        "container", "signature", "digests", "configuration", "model", "cells", "corpus", "scores", "d1", "d2", "d3",
        "ranks", "rerun",
    ]  # fmt: skip
    assert verdict.holds and verdict.run == made.folder.id
    assert states["signature"][1] == "signed by me@example.org"
    assert "200 passages" in states["corpus"][1] and "4 cells agree; 0 tasks" in states["rerun"][1]
    # The same run gives the same bytes.
    again = made.bundle.with_name("again.zip")
    bundles.submit(made.folder, made.bench.artifacts, made.plan.keys, again, key=made.key, licence="cc-by-4.0",
                   command="poolbench-driver submit")  # fmt: skip
    assert again.read_bytes() == made.bundle.read_bytes()
    again.unlink()


Edit = Callable[[RunFolder, Path], object]


def forged(made: Made, place: Path, edit: Edit, *, consistent: bool = True, key: Path | None = None) -> Path:
    """A bundle with something changed; a consistent forger writes all digests again and signs, with a key of theirs."""
    root = place / "forged"
    with zipfile.ZipFile(made.bundle) as archive:
        archive.extractall(root)
    folder = RunFolder(root / made.folder.id)
    edit(folder, root)
    if consistent:
        facts = {"config_hash": made.plan.config.config_hash()}
        folder.write_manifest(**facts, results_digest=results_digest(folder.read_table("results")))
        (root / f"{CHECKSUMS}.sig").unlink()
        write_checksums(root, {name: sha256_of(root / name) for name in files_below(root) if name != CHECKSUMS})
        sign(root / CHECKSUMS, key or made.key)
    bundles.pack(root, place / "forged.zip")
    return place / "forged.zip"


def in_results(change: Callable[[list[dict[str, Any]]], object]) -> Edit:
    def edit(folder: RunFolder, root: Path) -> None:
        rows = folder.read_table("results").to_pylist()
        rows = change(rows) or rows
        folder.write_table("results", result_table(rows))  # type: ignore[arg-type]

    return edit


def in_table(name: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Edit:
    def edit(folder: RunFolder, root: Path) -> None:
        table = folder.read_table(name)
        rows = [row for row in map(change, table.to_pylist()) if row is not None]
        folder.write_table(name, pa.Table.from_pylist(rows, table.schema))

    return edit


def first(rows: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return next(row for row in rows if all(row[name] == value for name, value in fields.items()))


def raised(metric: str) -> Edit:
    return in_results(lambda rows: first(rows, metric=metric, concept="contrast").update(value=0.99))


def raised_rank(rows: list[dict[str, Any]]) -> None:
    rank = first(rows, metric="rank.mean")
    rank["value"] -= 0.25


def without_concept(folder: RunFolder, root: Path) -> None:
    in_results(lambda rows: [row for row in rows if row["concept"] != "toxicity"])(folder, root)
    in_table("passage_scores", lambda row: row if row["concept"] != "toxicity" else None)(folder, root)


def other_corpus(folder: RunFolder, root: Path) -> None:
    """Passages of another seed under the name of this corpus."""
    config: Any = folder.config()
    other = config.model_copy(update={"corpus": config.corpus.model_copy(update={"seed": 1})})
    renamed: dict[str, str] = {}
    for split in ("train", "test"):
        tables: Any = [passages_step(c, CONCEPTS.get("contrast"), split).build() for c in (config, other)]
        renamed |= dict(zip(*(table["passage_id"].to_pylist() for table in tables), strict=True))
    assert set(renamed) != set(renamed.values())
    in_table("passage_scores", lambda row: {**row, "passage_id": renamed.get(row["passage_id"], row["passage_id"])})(
        folder, root
    )


def other_labels(row: dict[str, Any]) -> dict[str, Any]:
    """Two passages have each other's label, in every strategy alike."""
    return {**row, "label": 1 - row["label"]} if row["concept"] == "contrast" and row["group"] == "3" else row


def fewer_passages(row: dict[str, Any]) -> dict[str, Any] | None:
    """One strategy is scored on the passages that it has right."""
    at = row["concept"] == "toxicity" and row["strategy"] == "A1_mean"
    return None if at and row["split"] == "train" and (row["score"] > 0) != (row["label"] == 1) else row


def consistent_scores(folder: RunFolder, root: Path) -> None:
    """Scores of one strategy are better than they were, and so is all that follows from them."""
    in_table(
        "passage_scores",
        lambda row: (
            {**row, "score": row["score"] + 2.0 * row["label"]}
            if (row["concept"], row["strategy"]) == ("contrast", "A1_mean")
            else row
        ),
    )(folder, root)

    def follow(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        scored: Any = {}
        for row in folder.read_table("passage_scores").to_pylist():
            cell = scored.setdefault((row["concept"], row["split"], row["strategy"], row["layer"]), ({}, []))
            cell[0][row["passage_id"]] = row["label"], row["group"], row["fold"]
            cell[1].append(row["score"])
        passages: Any = {}
        for (concept, split, *_), (of_cell, _) in scored.items():
            passages.setdefault((concept, split), {}).update(of_cell)
        again: Any = folder.config()
        for ours in of_suite._d1(again, scored, passages, lambda line: None):
            row = first(rows, **{name: ours[name] for name in ("metric", "concept", "strategy", "layer")})
            row.update({name: ours[name] for name in ("value", "ci_low", "ci_high")})
        for ours in of_suite.concept_check_rows(rows):
            first(rows, **{name: ours[name] for name in ("metric", "concept", "layer")}).update(value=ours["value"])
        measured = [row for row in rows if row["metric"] != "rank.mean"]
        ranks, boards, pairs = rank_rows(measured, SUITES.get("poolbench").board)
        for name, part in (("boards", boards), ("pairwise", pairs)):
            folder.write_table(name, pa.Table.from_pylist(part, folder.read_table(name).schema))
        for ours in ranks:
            row = first(rows, metric="rank.mean", strategy=ours["strategy"], params=ours["params"])
            row.update({name: ours[name] for name in ("value", "ci_low", "ci_high", "n", "num_groups")})
        return rows

    in_results(follow)(folder, root)


def other_signature(folder: RunFolder, root: Path) -> None:
    file = root / f"{CHECKSUMS}.sig"
    lines = file.read_text().splitlines()
    lines[3] = lines[3][::-1]
    file.write_text("\n".join(lines) + "\n")


def other_model(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["model"] = "llama-3.1-8b"


def other_weights(folder: RunFolder, root: Path) -> None:
    file = folder.file("model.json")
    revision = json.loads(file.read_text())["revision"]
    file.write_text(file.read_text().replace(revision, "local-other"))
    in_results(lambda rows: [row.update(model_revision="local-other") for row in rows] and rows)(folder, root)


def other_settings(folder: RunFolder, root: Path) -> None:
    file = folder.file("config.resolved.yaml")
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "seed": 7}))


FORGERIES: dict[str, tuple[str, Edit]] = {
    "edited value": ("digests", raised("d1.auroc")),
    "edited value, digests written again": ("d1", raised("d1.auroc")),
    "edited figure of steering": ("d2", raised("d2.best_gain")),
    "edited disentanglement": ("d3", raised("d3.robust_ld")),
    "edited rank": ("ranks", in_results(raised_rank)),
    "dropped concept": ("cells", without_concept),
    "other corpus": ("corpus", other_corpus),
    "turned labels": ("corpus", in_table("passage_scores", other_labels)),
    "dropped passages": ("scores", in_table("passage_scores", fewer_passages)),
    "edited score of a text": (
        "d2",
        in_table("text_scores", lambda row: {**row, "score": row["score"] * (0.5 if row["strength"] else 1)}),
    ),
    "consistent edit of passage scores": ("rerun", consistent_scores),
    "edited signature": ("signature", other_signature),
    "signature of a stranger": ("signature", lambda folder, root: None),
    "swapped model": ("configuration", in_results(other_model)),
    "swapped weights": ("model", other_weights),
    "other settings": ("configuration", other_settings),
}
UNSIGNED_AGAIN = ("edited value", "edited signature")


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_caught_at_its_stage(name: str, made: Made, planned: None, tmp_path: Path) -> None:
    stage, edit = FORGERIES[name]
    key = made.key
    if name == "signature of a stranger":
        key = tmp_path / "stranger"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    file = forged(made, tmp_path, edit, consistent=name not in UNSIGNED_AGAIN, key=key)
    stages = []

    def until_failed(check: Check) -> None:
        stages.append(check)
        if check.state == State.FAILED:
            raise StopAsyncIteration

    with pytest.raises(StopAsyncIteration):
        verify(file, signers=made.signers, rerun=rerun_of(made), on_check=until_failed)
    assert stages[-1].stage == stage, stages
    assert not Verdict("", "", "", stages).holds
    assert stage != "rerun" or Verdict("", "", "", stages[:-1]).holds  # nothing else can tell


def test_a_cell_that_the_store_lacks_is_measured_again_alone(made: Made, planned: None) -> None:
    keys = of_suite.behind(made.plan, "contrast", "A1_mean", 2)
    part = part_of(made.plan, set(keys))
    assert keys <= part.keys and len(part.tasks) < len(made.plan.tasks)
    bench, probes = made.bench, made.plan.probes.concepts["contrast"]
    (key,) = [key for cell, key in probes.scores.items() if cell.strategy == "A1_mean"]
    task = made.plan.producers[key]
    copies = {key: bench.artifacts.read_table(key) for key in task.outputs.values()}
    for key in copies:
        bench.artifacts.delete(key)

    def copy(task: Task, io: TaskIO) -> None:
        for role in list(io.missing):
            io.write_table(role, copies[task.outputs[role]])

    bench.service.handlers = {task.kind: copy}
    consumer = bench.consume()
    try:
        (check,) = [one for one in verify(made.bundle, rerun=rerun_of(made)).stages if one.stage == "rerun"]
    finally:
        consumer.stop.set()
        consumer.join(10)
    assert check.state == State.PASSED and "; 1 tasks were done for them" in check.note, check


def test_truncated_other_and_textual_bundles_fail_and_say_why(made: Made, tmp_path: Path) -> None:
    (tmp_path / "cut.zip").write_bytes(made.bundle.read_bytes()[:-2000])
    (tmp_path / "text.zip").write_text("not a bundle")
    with_texts = forged(made, tmp_path, lambda f, root: f.write_table("evidence", pa.table({"text": ["a text"]})))
    for file, why in (
        ("cut.zip", "not a whole ZIP"),
        ("text.zip", "not a whole ZIP"),
        (with_texts.name, "holds texts"),
    ):
        verdict = verify(tmp_path / file)
        assert failed(verdict) == ["container"] and why in verdict.stages[0].note
    with pytest.raises(NotFoundError, match="no bundle"):
        verify(tmp_path / "none.zip")
    (tmp_path / "old").mkdir()

    def of_another_version(folder: RunFolder, root: Path) -> None:
        manifest = folder.file("manifest.json")
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema_version": 1}))
        write_checksums(root, {name: sha256_of(root / name) for name in files_below(root) if name != CHECKSUMS})

    verdict = verify(forged(made, tmp_path / "old", of_another_version, consistent=False))
    assert "version 1, and this PoolBench reads" in verdict.stages[-1].note


def test_a_run_that_is_under_way_or_shows_texts_has_no_bundle(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.folder.path, tmp_path / made.folder.id)
    folder = RunFolder(tmp_path / made.folder.id)
    how: dict[str, Any] = {"licence": "unknown", "command": "submit"}
    with patch.object(SUITES.get("poolbench"), "shows_texts", True, create=True), pytest.raises(RestrictedError):
        bundles.submit(folder, made.bench.artifacts, [], tmp_path / "run.zip", **how)
    with pytest.raises(InputError, match="--key"):
        bundles.submit(folder, made.bench.artifacts, [], tmp_path / "run.zip", key=tmp_path / "none", **how)
    folder.write_state("running")
    with pytest.raises(NotFoundError, match=r"has not ended \(state: running\)"):
        bundles.submit(folder, made.bench.artifacts, [], tmp_path / "run.zip", **how)
    assert [path.name for path in tmp_path.iterdir()] == [folder.id]


def test_without_ssh_keygen_signatures_are_not_checked_or_the_error_says_what_to_install(
    made: Made, tmp_path: Path, driver: Any, environment: dict[str, str]
) -> None:
    without = {**environment, "PATH": str(tmp_path)}
    ended = driver(without, "verify", str(made.bundle))
    assert ended.returncode == 0 and "signature: cannot be checked: signatures need ssh-keygen" in ended.stdout
    ended = driver(without, "verify", str(made.bundle), "--signers", str(made.signers))
    assert ended.returncode == 2 and "apt install openssh-client" in ended.stderr


def test_the_commands_pack_verify_and_show_runs(
    made: Made, tmp_path: Path, driver: Any, environment: dict[str, str]
) -> None:
    store = made.bench.artifacts.store
    store.put(f"runs/{made.folder.id}/keys.json.gz", encode_keys(made.plan.keys))
    environment = {**environment, "POOLBENCH_STORE": store.uri}
    runs, bundle = ("--runs", str(made.folder.path.parent)), tmp_path / "shared/run.zip"
    ended = driver(environment, "submit", "latest", "--output", str(bundle), *runs)
    assert ended.returncode == 0 and "not signed, digest" in ended.stdout, ended.stderr
    assert driver(environment, "submit", "none", "--output", str(bundle), *runs).returncode == 2
    ended = driver(environment, "verify", str(bundle), "--json")
    report = json.loads(ended.stdout)
    assert ended.returncode == 0 and report["holds"] and report["digest"] == hashlib.sha256(
        zipfile.ZipFile(bundle).read(CHECKSUMS)
    ).hexdigest()  # fmt: skip
    wrong = forged(made, tmp_path, raised("d1.auroc"))
    shutil.move(wrong, bundle.with_name("wrong.zip"))
    ended = driver(environment, "verify", str(bundle.with_name("wrong.zip")))
    assert ended.returncode == 1 and "d1: failed: d1.auroc, A1_mean, contrast" in ended.stdout
    ended = driver(environment, "leaderboard", "build", str(tmp_path / "shared"), "--output", str(tmp_path / "board"))
    assert ended.returncode == 0 and "2 lines; 1 of 2 bundles hold" in ended.stdout, ended.stderr
    page = json.loads((tmp_path / "board/board.json").read_text())
    assert [column["head"] for column in page["board"]["columns"]][-1] == "verified"
    assert page["board"]["lines"][0]["cells"][-1]["text"] == "from scores; not signed"
    html = (tmp_path / "board/index.html").read_text()
    assert "wrong.zip" not in html and "d1.auroc, A1_mean, contrast" in html and "?of=" not in html
    with pytest.raises(NotFoundError, match="no bundle"):
        build([tmp_path / "board"], tmp_path / "other")
    for argument in (["leaderboard", "-h"], ["leaderboard", "build", "-h"]):
        assert driver(environment, *argument).returncode == 0


def test_a_client_verifies_a_bundle_without_a_cluster(made: Made, tmp_path: Path) -> None:
    """`make test-client` names a client by CLIENT, on another Python and with the newest packages."""
    client = os.environ.get("CLIENT") or str(Path(sys.executable).with_name("poolbench-driver"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}
    command = [client, "verify", made.bundle, "--signers", made.signers, "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    states = {stage["stage"]: stage["state"] for stage in json.loads(done.stdout)["stages"]}
    model = states.pop("model")  # an installed client does not have the demo model
    assert set(states.values()) == {"passed"} and model in ("passed", "cannot be checked"), states


def test_a_run_that_was_pushed_is_pulled_the_same_and_reads_as_a_dataset(
    made: Made, tmp_path: Path, driver: Any, environment: dict[str, str]
) -> None:
    store = made.bench.artifacts.store
    store.put(f"runs/{made.folder.id}/keys.json.gz", encode_keys(made.plan.keys))
    environment = {**environment, "POOLBENCH_STORE": store.uri}
    there, runs = tmp_path / "there", ("--runs", str(made.folder.path.parent))
    assert driver(environment, "push", "latest", str(there), *runs).returncode == 0
    assert driver(environment, "push", "latest", str(there), *runs).returncode == 0  # replaces it
    ended = driver(environment, "pull", str(there), "--output", str(tmp_path / "runs"))
    assert ended.returncode == 0, ended.stderr
    copy = RunFolder.find(tmp_path / "runs", made.folder.id)
    assert copy.read_table("results").equals(made.folder.read_table("results"))
    card = (there / "README.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert {"poolbench", "benchmark"} <= set(header["tags"]) and header["license"] == "unknown"
    files = {entry["config_name"]: entry["data_files"] for entry in header["configs"]}
    assert pq.read_table(there / files["results"]).num_rows == copy.read_table("results").num_rows
    dataset = mlcroissant.Dataset(str(there / "croissant.json"))  # raises where the metadata are not valid
    record = next(iter(dataset.records(f"{made.folder.id}/passage_scores")))
    assert {key.rpartition("/")[2] for key in record} == set(copy.read_table("passage_scores").column_names)
    (there / made.folder.id / "results.parquet").write_bytes(b"changed")
    with pytest.raises(IntegrityError, match="is not as its SHA256SUMS says"):
        pull(str(there), tmp_path / "other")
    with pytest.raises(NotFoundError, match="holds nothing that was pushed"):
        pull(str(tmp_path / "runs"), tmp_path / "other")
    with pytest.raises(InputError, match="holds other files"):
        push(there, str(tmp_path / "runs"), "dataset")
    (there / CHECKSUMS).write_text(f"{'0' * 64}  ../../outside\n")
    with pytest.raises(InputError, match="outside"):
        pull(str(there), tmp_path / "other")
