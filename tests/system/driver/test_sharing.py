"""Bundles: a run with D1 of real probes is packed, holds, and no forgery of it does; pushed, it is pulled the same."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlcroissant
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from driver.tests.test_sharing import failed
from tests.system.driver.forging import Edit, Made, contents_of, first, follow, forged, in_results, in_table, rerun_of

from poolbench.concepts import CONCEPTS
from poolbench.contracts.tasks import Task
from poolbench.errors import InputError, IntegrityError, NotFoundError, RestrictedError
from poolbench.worker.taskio import TaskIO
from poolbench_driver.contract.page import Table
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.verification import Check, State
from poolbench_driver.corpora.sources import passages_step
from poolbench_driver.dataset_folder import CHECKSUMS, files_below, sha256_of, write_checksums
from poolbench_driver.records import Run, Runs
from poolbench_driver.records.folder import write_manifest, write_state, write_table
from poolbench_driver.records.record import encode_keys
from poolbench_driver.sharing import bundle as bundles
from poolbench_driver.sharing.board import build
from poolbench_driver.sharing.exchange import pull, push
from poolbench_driver.sharing.rerun import drawn, part_of
from poolbench_driver.sharing.verification import Verification, verify
from poolbench_driver.suites.poolbench import verification as of_suite


def test_a_rerun_that_compares_nothing_shows_nothing(made: Made, planned: None) -> None:
    verdict = verify(made.bundle, signers=made.signers, rerun=rerun_of(made, 0))
    assert verdict.stages[-1].stage == "rerun" and verdict.stages[-1].state == State.UNCHECKED and not verdict.holds


def test_the_bundle_of_a_run_holds_in_every_stage(made: Made, planned: None) -> None:
    verdict = verify(made.bundle, signers=made.signers, rerun=rerun_of(made))
    states = {check.stage: (check.state, check.note) for check in verdict.stages}
    # One passage of the run has no vector, which only the rerun can show.
    cell = "train passages of contrast, W4_hierarchical:remainder=true, layer 2: 1 of 60 have no score"
    assert states.pop("coverage") == (
        State.UNCHECKED, f"1 of 15 cells lack scores, and only a rerun shows why: {cell}"
    )  # fmt: skip
    # Nor does it hold the scores of held-out passages: .9 of positives, .1 of negatives.
    state, note = states.pop("scorers")
    assert state == State.UNCHECKED and note.startswith("only a rerun") and "contrast 0.800, " in note
    assert {state for state, _ in states.values()} == {State.PASSED}, states
    assert [check.stage for check in verdict.stages] == [
        "container", "signature", "digests", "configuration", "model", "cells", "corpus", "coverage", "scores", "d1",
        "scorers", "d2", "d3", "ranks", "rerun",
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


def raised(metric: str) -> Edit:
    return in_results(lambda rows: first(rows, metric=metric, concept="contrast").update(value=0.99))


def raised_rank(rows: list[dict[str, Any]]) -> None:
    rank = first(rows, metric="rank.mean")
    rank["value"] -= 0.25


def without_concept(folder: Run, root: Path) -> None:
    in_results(lambda rows: [row for row in rows if row["concept"] != "toxicity"])(folder, root)
    in_table("passage_scores", lambda row: row if row["concept"] != "toxicity" else None)(folder, root)


def other_corpus(folder: Run, root: Path) -> None:
    """Passages of another seed under the name of this corpus."""
    config: Any = folder.config
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


def without(table: str, share: float, **of: Any) -> Edit:
    """Scores of a cell that are bad for it are gone, and all that follows from the scores is written again."""

    def edit(folder: Run, root: Path) -> None:
        rows = [row for row in folder.read_table(table).to_pylist() if all(row[name] == of[name] for name in of)]
        item = "passage_id" if table == "passage_scores" else "prompt_id"
        goodness = {row[item]: row["score"] * (2 * row.get("label", 1) - 1) for row in rows}
        dropped = set(sorted(goodness, key=goodness.__getitem__)[: round(share * len(goodness))])
        kept = in_table(table, lambda row: None if all(row[n] == of[n] for n in of) and row[item] in dropped else row)
        kept(folder, root)
        details = folder.read_table("details").to_pylist()
        for row in details:
            row["details"] = json.dumps({**json.loads(row["details"]), "left_out": len(dropped)})
        write_table(folder, "details", pa.Table.from_pylist(details, folder.read_table("details").schema))
        follow(folder)

    return edit


def of_scorers(change: Callable[[dict[str, Any]], object]) -> Edit:
    """Rows of the gates are others, and so is all that follows from them."""

    def edit(folder: Run, root: Path) -> None:
        of_gates = in_results(
            lambda rows: [change(row) for row in rows if row["metric"].startswith("scorer.")] and rows
        )
        of_gates(folder, root)
        follow(folder)

    return edit


def divided_range(row: dict[str, Any]) -> None:
    if row["scorer"] == "contrast" and row["metric"] == "scorer.positive_mean":
        row["value"] = 0.1 + 0.8 / 3


def other_verdict(row: dict[str, Any]) -> None:
    if row["scorer"] == "contrast" and row["params"] == '{"part": "verdict"}':
        row.update(value=0.0, reason="b: .52")


def other_part(row: dict[str, Any]) -> None:
    if row["scorer"] == "contrast" and '"part": "b"' in row["params"]:
        row.update(value=0.5, ci_low=0.4)


def without_gate_rows(params: str) -> Edit:
    """Rows of the gate of one scorer are gone."""
    return in_results(
        lambda rows: [row for row in rows if row["scorer"] != "toxicity" or params not in (row["params"] or "")]
    )


def renamed(folder: Run, root: Path) -> None:
    """The run of another under a name of the forger's."""
    folder.path.rename(root / "mine")
    write_checksums(root, {name: sha256_of(root / name) for name in files_below(root) if name not in NOT_SUMMED})


def other_card(folder: Run, root: Path) -> None:
    (root / "README.md").write_text((root / "README.md").read_text() + " ")


def other_card_and_checksums(folder: Run, root: Path) -> None:
    other_card(folder, root)
    write_checksums(root, {name: sha256_of(root / name) for name in files_below(root) if name not in NOT_SUMMED})


def consistent_scores(folder: Run, root: Path) -> None:
    """Scores of one strategy are better than they were, and so is all that follows from them."""
    in_table(
        "passage_scores",
        lambda row: (
            {**row, "score": row["score"] + 2.0 * row["label"]}
            if (row["concept"], row["strategy"]) == ("contrast", "A1_mean")
            else row
        ),
    )(folder, root)

    follow(folder)


def other_signature(folder: Run, root: Path) -> None:
    file = root / f"{CHECKSUMS}.sig"
    lines = file.read_text().splitlines()
    lines[3] = lines[3][::-1]
    file.write_text("\n".join(lines) + "\n")


def other_model(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["model"] = "llama-3.1-8b"


def other_weights(folder: Run, root: Path) -> None:
    file = folder.file("model.json")
    revision = json.loads(file.read_text())["revision"]
    file.write_text(file.read_text().replace(revision, "local-other"))
    in_results(lambda rows: [row.update(model_revision="local-other") for row in rows] and rows)(folder, root)


def rows_of_other_weights(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["model_revision"] = "local-other"


def record_of(model: str) -> Edit:
    """The record of the model names another one."""

    def edit(folder: Run, root: Path) -> None:
        file = folder.file("model.json")
        file.write_text(json.dumps({**json.loads(file.read_text()), "id": model}))

    return edit


def other_settings(folder: Run, root: Path) -> None:
    file = folder.file("config.resolved.yaml")
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "seed": 7}))


NOT_SUMMED = (CHECKSUMS, f"{CHECKSUMS}.sig")
FORGERIES: dict[str, tuple[str, Edit]] = {
    "edited value": ("digests", raised("d1.auroc")),
    "edited value, digests written again": ("d1", raised("d1.auroc")),
    "edited figure of steering": ("d2", raised("d2.best_gain")),
    "edited disentanglement": ("d3", raised("d3.robust_ld")),
    "divided range of a scorer": ("rerun", of_scorers(divided_range)),
    "turned verdict of a gate": ("scorers", of_scorers(other_verdict)),
    "other part of a gate": ("scorers", in_results(lambda rows: [other_part(row) for row in rows] and rows)),
    "dropped part of a gate": ("scorers", without_gate_rows('"part": "b"')),
    "dropped verdict of a gate": ("scorers", without_gate_rows('"part": "verdict"')),
    "dropped row of the test split": (
        "d1",
        in_results(
            lambda rows: [row for row in rows if (row["metric"], row["concept"]) != ("d1.auroc_test", "contrast")]
        ),
    ),
    "dropped figure of steering": (
        "d2",
        in_results(lambda rows: [row for row in rows if row["metric"] != "d2.fluency"]),
    ),
    "edited rank": ("ranks", in_results(raised_rank)),
    "dropped concept": ("cells", without_concept),
    "other corpus": ("corpus", other_corpus),
    "rows of another corpus": (
        "corpus",
        in_results(lambda rows: [row.update(dataset_revision="other") for row in rows] and rows),
    ),
    "turned labels": ("corpus", in_table("passage_scores", other_labels)),
    "dropped passages": ("coverage", in_table("passage_scores", fewer_passages)),
    "dropped train passages, left out as the details say": (
        "coverage",
        without("passage_scores", 0.2, concept="contrast", strategy="A1_mean", split="train"),
    ),
    "dropped test passages": ("coverage", without("passage_scores", 0.2, strategy="A1_mean", split="test")),
    "dropped test passages, n as it was": (
        "d1",
        in_table("passage_scores", lambda row: None if row["split"] == "test" and row["group"] == "3" else row),
    ),
    "dropped openings": ("coverage", without("text_scores", 0.2, concept="contrast", name="A1_mean")),
    "dropped opening of null directions": (
        "coverage",
        in_table("text_scores", lambda row: row if row["prompt_id"][-1] != "2" or row["name"] != "nulls" else None),
    ),
    "dropped strength": (
        "coverage",
        in_table("text_scores", lambda row: row if row["strength"] != 0.125 or row["name"] != "A1_mean" else None),
    ),
    "dropped scorer": (
        "coverage",
        in_table("text_scores", lambda row: row if row["scorer"] != "contrast" or row["name"] != "A1_mean" else None),
    ),
    "dropped null direction": (
        "scores",
        in_table("text_scores", lambda row: row if row["direction"] != 3 or row["name"] != "nulls" else None),
    ),
    "edited score of a text": (
        "d2",
        in_table("text_scores", lambda row: {**row, "score": row["score"] * (0.5 if row["strength"] else 1)}),
    ),
    "consistent edit of passage scores": ("rerun", consistent_scores),
    "edited signature": ("signature", other_signature),
    "edited card": ("digests", other_card),
    "edited card, checksums written again": ("signature", other_card_and_checksums),
    "dropped signature": ("signature", lambda folder, root: (root / f"{CHECKSUMS}.sig").unlink()),
    "run of another under a new name": ("signature", renamed),
    "signature of a stranger": ("signature", lambda folder, root: None),
    "swapped model": ("configuration", in_results(other_model)),
    "swapped weights": ("model", other_weights),
    "rows of other weights": ("model", in_results(rows_of_other_weights)),
    "record of a model before it by name": ("model", record_of("another")),
    "record of a model after it by name": ("model", record_of("yet-another")),
    "no record of the model": ("model", lambda folder, root: folder.file("model.json").unlink()),
    "other settings": ("configuration", other_settings),
}
UNSIGNED_AGAIN = (
    *("edited value", "edited signature", "edited card", "edited card, checksums written again"),
    *("dropped signature", "run of another under a new name"),
)


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
    assert not Verification("", "", "", stages).holds
    assert stage != "rerun" or Verification("", "", "", stages[:-1]).holds  # nothing else can tell


def test_a_table_that_the_manifest_of_the_run_does_not_list_fails(made: Made, tmp_path: Path) -> None:
    def other_bytes(folder: Run, root: Path) -> None:
        table = folder.read_table("pairwise")
        write_table(folder, "pairwise", table.replace_schema_metadata({"with": "other bytes"}))
        for name in NOT_SUMMED:
            (root / name).unlink()
        write_checksums(root, {name: sha256_of(root / name) for name in files_below(root)})

    verdict = verify(forged(made, tmp_path, other_bytes, consistent=False))
    (digests,) = [check for check in verdict.stages if check.stage == "digests"]
    assert digests.state == State.FAILED
    assert digests.note == "pairwise.parquet is not as the manifest of the run says"


def test_the_verifier_draws_the_cells_and_the_same_number_draws_the_same(made: Made, planned: None) -> None:
    spec, rows = SUITES.get("poolbench").board, made.folder.read_table("results").to_pylist()
    first_cells = {drawn(rows, spec, draw)[0] for draw in range(40)}
    strategies = ("A1_mean", "W4_hierarchical:remainder=true")
    assert first_cells == {(concept, strategy, 2) for concept in ("contrast", "toxicity") for strategy in strategies}
    assert drawn(rows, spec, 7) == drawn(rows[::-1], spec, 7)
    (check,) = [one for one in verify(made.bundle, rerun=rerun_of(made, 1, 7)).stages if one.stage == "rerun"]
    assert check.state == State.PASSED and check.note.startswith("draw 7: ") and "of 1 cells agree" in check.note


def test_a_rerun_compares_numbers_of_passages_and_nulls_too(made: Made, planned: None, tmp_path: Path) -> None:
    def hidden(rows: list[dict[str, Any]]) -> None:
        row = first(rows, metric="d1.auroc", concept="contrast", strategy="A1_mean")
        row.update(value=None, ci_low=None, ci_high=None, status="collapsed", reason="all vectors are the same")
        first(rows, metric="d1.auroc_test", concept="contrast", strategy="A1_mean").update(n=39)

    file = forged(made, tmp_path, in_results(hidden))
    note = verify(file, rerun=rerun_of(made)).stages[-1].note
    assert "d1.auroc, A1_mean, contrast, 2 is collapsed, and was measured again as" in note
    assert "d1.auroc_test, A1_mean, contrast, 2 is of 39 items, and was measured again on 40" in note


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
    with_texts = forged(made, tmp_path, lambda f, root: write_table(f, "evidence", pa.table({"text": ["a text"]})))
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

    def of_another_version(folder: Run, root: Path) -> None:
        manifest = folder.file("manifest.json")
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema_version": 1}))
        write_checksums(root, {name: sha256_of(root / name) for name in files_below(root) if name != CHECKSUMS})

    verdict = verify(forged(made, tmp_path / "old", of_another_version, consistent=False))
    assert "version 1, and this PoolBench reads" in verdict.stages[-1].note


#: Names of the files of a bundle in ZIPs of other programs.
PACKERS: dict[str, Callable[[list[str]], list[str]]] = {
    "entries of folders": lambda names: [*{f"{name.partition('/')[0]}/" for name in names if "/" in name}, *names],
    "a folder around": lambda names: ["shared run/", *(f"shared run/{name}" for name in names)],
    "two folders around": lambda names: [f"a/b.c/{name}" for name in names],
    "macOS": lambda names: [*names, ".DS_Store", "__MACOSX/", "__MACOSX/._README.md", "._README.md"],
    "macOS, the folder": lambda names: [f"run/{n}" for n in [*names, ".DS_Store"]] + ["__MACOSX/run/._README.md"],
    "PowerShell": lambda names: [name.replace("/", "\\") for name in names],
    "paths from here": lambda names: ["./", *(f"./{name}" for name in names)],
}


@pytest.fixture(scope="module")
def original(made: Made) -> Verification:
    """What the verification says of the bundle as it was packed."""
    return verify(made.bundle, signers=made.signers)


@pytest.mark.parametrize("packer", PACKERS)
def test_a_bundle_that_another_program_packed_holds(
    packer: str, made: Made, original: Verification, tmp_path: Path
) -> None:
    contents = contents_of(made.bundle)
    by_end = {name.replace("/", "\\") if packer == "PowerShell" else name: data for name, data in contents.items()}
    again = tmp_path / "again.zip"
    with zipfile.ZipFile(again, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in PACKERS[packer]([*contents]):
            entry = zipfile.ZipInfo("x")
            entry.filename = name  # the constructor replaces what Windows writes
            data = next((data for end, data in by_end.items() if name.endswith(end) and "._" not in name), b"")
            archive.writestr(entry, data)
    verdict = verify(again, signers=made.signers)
    assert verdict.holds and verdict.digest == original.digest and verdict.stages == original.stages


def test_a_board_tells_bundles_apart_by_their_content(made: Made, tmp_path: Path) -> None:
    """Each file is counted once, whatever it is called, and neither a copy nor its signature hides another's run."""
    contents = contents_of(made.bundle)
    edited = {name: data + b"\na note\n" if name == "README.md" else data for name, data in contents.items()}
    unsigned = {name: data for name, data in contents.items() if name != f"{CHECKSUMS}.sig"}
    files: dict[str, dict[str, bytes] | bytes] = {
        "1/run.zip": edited, "2/run.zip": unsigned, "3/run.zip": contents, "4/run.zip": contents,
        "5/run.zip": made.bundle.read_bytes()[:-2000], "6/run.zip": b"not a ZIP", "6/._run.zip": b"of macOS",
    }  # fmt: skip
    for name, content in files.items():
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            with zipfile.ZipFile(file, "w") as archive:
                for entry, data in content.items():
                    archive.writestr(entry, data)
    page = build([tmp_path / "in"], tmp_path / "board")
    assert page.answer.sentences[-1] == "3 of 6 bundles hold; the figures of the others are not shown."
    single = build([made.bundle], tmp_path / "single")
    assert len(page.board.lines) == len(single.board.lines) == 2
    assert {line.cells[-1].text.split(" the key")[0] for line in page.board.lines} == {"from scores; signed with"}
    (part,) = [part for part in page.parts if part.anchor == "verification"]
    (table,) = part.blocks
    assert isinstance(table, Table)
    rows = [[cell.text for cell in line.cells] for line in table.lines]
    failures = {name.partition(":")[0]: stage for name, stage, state, _ in rows if state == "failed"}
    assert failures == {"1/run.zip": "digests", "5/run.zip": "container", "6/run.zip": "container"}


def test_an_unpacked_bundle_holds_and_a_stray_file_is_named(made: Made, original: Verification, tmp_path: Path) -> None:
    folder = tmp_path / "unpacked/run"
    for name, data in contents_of(made.bundle).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    for place in (folder, folder.parent):
        assert verify(place, signers=made.signers).stages == original.stages
    (folder / "note.txt").write_text("for you")
    assert verify(folder).stages[0].note == "its entry 'note.txt' does not belong into a bundle"
    (folder / "note.txt").unlink()
    (folder / "README.md").write_text("edited")
    assert [check.note for check in verify(folder).stages if check.state == State.FAILED] == [
        "README.md is not as SHA256SUMS says"
    ]
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to("/etc/hostname")
    assert "'README.md' does not belong" in verify(folder).stages[0].note
    assert "is a folder without SHA256SUMS" in verify(made.folder.path).stages[0].note


def test_a_run_that_is_under_way_or_shows_texts_has_no_bundle(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.folder.path, tmp_path / made.folder.id)
    folder = Run(tmp_path / made.folder.id)
    how: dict[str, Any] = {"licence": "unknown", "command": "submit"}
    write_table(folder, "quoted", pa.table({"text": ["a text"]}))
    write_manifest(folder)
    with pytest.raises(RestrictedError, match=r"quoted\.parquet holds texts"):
        bundles.submit(folder, made.bench.artifacts, [], tmp_path / "run.zip", **how)
    folder.file("quoted.parquet").unlink()
    write_manifest(folder)
    with pytest.raises(InputError, match="--key"):
        bundles.submit(folder, made.bench.artifacts, [], tmp_path / "run.zip", key=tmp_path / "none", **how)
    write_state(folder, "running")
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
    assert page["board"]["lines"][0]["cells"][-1]["text"] == "from scores; not signed; not checked: coverage, scorers"
    html = (tmp_path / "board/index.html").read_text()
    assert "wrong.zip" in html and "d1.auroc, A1_mean, contrast" in html and "?of=" not in html
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
    others = {stage for stage, state in states.items() if state != "passed"}
    # An installed client does not have the demo model, and one passage has no vector.
    assert {"coverage", "scorers"} <= others <= {"coverage", "scorers", "model"}, states


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
    copy = Runs(tmp_path / "runs").find(made.folder.id)
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
