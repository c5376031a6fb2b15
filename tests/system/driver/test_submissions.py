"""Submissions of methods that another program measured: what their schema allows, what is checked, and their line."""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from driver.tests.test_sharing import failed
from jsonschema import Draft202012Validator
from tests.pages import BLOCK, REPOSITORY
from tests.system.driver.forging import Made, contents_of, make

from poolbench_driver.cli import main
from poolbench_driver.contract.verification import State
from poolbench_driver.dataset_folder import CHECKSUMS, files_below, sha256_of, write_checksums
from poolbench_driver.sharing.board import build
from poolbench_driver.sharing.bundle import pack
from poolbench_driver.sharing.signatures import sign
from poolbench_driver.sharing.submission import schema
from poolbench_driver.sharing.verification import verify

PAGE = REPOSITORY / "docs" / "submissions.md"
FILES = {"submission.json", "config.resolved.yaml", "passage_scores.parquet", CHECKSUMS}
Content = dict[str, Any]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A finished run on real text, and its bundle."""
    return make(tmp_path_factory.mktemp("real"), concepts=["contrast", "hedging"], corpus={"source": "real"})


@pytest.fixture(scope="module")
def written(real: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the code of the page has written a submission beside an unpacked bundle."""
    place = tmp_path_factory.mktemp("page")
    with zipfile.ZipFile(real.bundle) as archive:
        archive.extractall(place / "bundle")
    shutil.copytree(REPOSITORY / "assets" / "real_corpus", place / "real_corpus")
    (code,) = [block for language, block in BLOCK.findall(PAGE.read_text("utf-8")) if language == "python"]
    imported = {line.split()[1].partition(".")[0] for line in code.splitlines() if line.startswith(("import", "from"))}
    assert imported == {"hashlib", "json", "pathlib", "shutil", "zipfile", "numpy", "pyarrow"}
    (place / "write.py").write_text(code, "utf-8")
    subprocess.run([sys.executable, "write.py"], cwd=place, check=True)
    return place


def as_is(part: Content) -> None:
    """Change nothing."""


def changed(
    written: Path,
    place: Path,
    content: Callable[[Content], object] = as_is,
    row: Callable[[Content], object] = as_is,
) -> Path:
    """Return a copy of the submission with other content or other scores, and checksums that fit."""
    root = Path(shutil.copytree(written / "my-method", place / "changed"))
    (root / CHECKSUMS).unlink()
    submission = json.loads((root / "submission.json").read_text())
    content(submission)
    (root / "submission.json").write_text(json.dumps(submission))
    rows = pq.read_table(root / "passage_scores.parquet").to_pylist()
    for each in rows:
        row(each)
    pq.write_table(pa.Table.from_pylist(rows), root / "passage_scores.parquet")
    return with_checksums(root)


def with_checksums(root: Path) -> Path:
    write_checksums(root, {name: sha256_of(root / name) for name in files_below(root) if name != CHECKSUMS})
    return root


def test_the_submission_of_the_page_holds_and_has_a_line_on_the_board(
    real: Made, written: Path, tmp_path: Path
) -> None:
    file = written / "my-method.zip"
    assert set(contents_of(file)) == FILES
    verdict = verify(file)
    states = {check.stage: check.state for check in verdict.stages}
    assert states.pop("signature") == states.pop("model") == State.UNCHECKED
    assert list(states) == ["container", "digests", "figures", "cells", "corpus", "coverage", "scores", "d1"]
    assert set(states.values()) == {State.PASSED}, verdict.stages
    assert verdict.holds and verdict.run == "letter-counts"

    page = build([real.bundle, file], tmp_path / "board")
    lines = [[cell.text for cell in line.cells] for line in page.board.lines]
    (line,) = [line for line in lines if line[0] == "letter-counts"]
    assert line[1] == "none" and line[-1] == "from scores; not signed; not checked: model"
    assert {line[0] for line in lines} == {"A1_mean", "W4_hierarchical:remainder=true", "letter-counts"}
    assert "2 of 2 bundles hold." in page.answer.sentences
    assert "counts of letters" in (tmp_path / "board" / "index.html").read_text()


def test_its_figures_are_those_of_a_run_with_the_same_scores(real: Made, written: Path, tmp_path: Path) -> None:
    """The scores of a strategy of the run, submitted by another, have the figures and intervals of the run."""
    root = Path(shutil.copytree(written / "my-method", tmp_path / "same"))
    theirs = real.folder.read_table("passage_scores").to_pylist()
    names = pq.read_schema(root / "passage_scores.parquet").names
    rows = [{name: row[name] for name in names} for row in theirs if row["strategy"] == "A1_mean"]
    pq.write_table(pa.Table.from_pylist(rows), root / "passage_scores.parquet")
    (root / CHECKSUMS).unlink()
    page = build([real.bundle, with_checksums(root)], tmp_path / "board")
    cells = {line.cells[0].text: line.cells[4:7] for line in page.board.lines}
    assert cells["letter-counts"] == cells["A1_mean"]


def test_a_submission_that_holds_is_one_of_the_schema(written: Path) -> None:
    Draft202012Validator.check_schema(schema())
    assert schema() == json.loads((REPOSITORY / "docs" / "submission.schema.json").read_text())
    require_valid(json.loads((written / "my-method" / "submission.json").read_text()))
    for row in pq.read_table(written / "my-method" / "passage_scores.parquet").to_pylist():
        require_valid(row, "PassageScore")


def require_valid(instance: Content, kind: str = "Submission") -> None:
    Draft202012Validator({**schema(), "$ref": f"#/$defs/{kind}"}).validate(instance)


def is_valid(instance: Content, kind: str = "Submission") -> bool:
    return Draft202012Validator({**schema(), "$ref": f"#/$defs/{kind}"}).is_valid(instance)


FIGURE = {"metric": "d2.best_gain", "block": "contrast", "value": 0.5}
#: Changes of `submission.json`, and whether the result is one of the schema.
CONTENTS: dict[str, tuple[bool, Content]] = {
    "other numbers": (True, {"version": 1.0, "figures": [{**FIGURE, "layer": 2.0, "value": 1, "n": 3}]}),
    "no revision, and no link": (True, {"model_revision": None, "method": {"name": "a-1", "summary": "A method."}}),
    "name with a path": (False, {"method": {"name": "../a", "summary": "A method."}}),
    "no summary": (False, {"method": {"name": "a"}}),
    "link that is not one": (False, {"method": {"name": "a", "summary": "A method.", "link": "javascript:x"}}),
    "other version": (False, {"version": 2}),
    "unknown field": (False, {"rank": 1}),
    "number as text": (False, {"figures": [{**FIGURE, "value": "0.5"}]}),
    "layer that is not whole": (False, {"figures": [{**FIGURE, "layer": 1.5}]}),
    "truth as a layer": (False, {"figures": [{**FIGURE, "layer": True}]}),
    "no items": (False, {"figures": [{**FIGURE, "n": 0}]}),
    "model that is a number": (False, {"model": 7}),
    "model without a name": (False, {"model": ""}),
    "model that changes the reader's terminal": (False, {"model": "\x1b[2J"}),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_schema_and_reader_agree_on_the_content(name: str, written: Path, tmp_path: Path) -> None:
    allowed, change = CONTENTS[name]
    root = changed(written, tmp_path, lambda content: content.update(change))
    assert is_valid(json.loads((root / "submission.json").read_text())) == allowed
    verdict = verify(root)
    assert failed(verdict) == ([] if allowed else ["container"])
    assert allowed or "submit --schema" in verdict.stages[0].note


#: Changes of each row of scores that the schema refuses.
ROWS: dict[str, Content] = {
    "other label": {"label": 2},
    "other split": {"split": "dev"},
    "group that is not a number": {"group": "a"},
    "no score": {"score": None},
    "layer as text": {"layer": "2"},
    "further column": {"strategy": "A1_mean"},
}


@pytest.mark.parametrize("name", ROWS)
def test_schema_and_reader_agree_on_the_scores(name: str, written: Path, tmp_path: Path) -> None:
    root = changed(written, tmp_path, row=lambda row: row.update(ROWS[name]))
    assert not is_valid(pq.read_table(root / "passage_scores.parquet").to_pylist()[0], "PassageScore")
    verdict = verify(root)
    assert failed(verdict) == ["figures"] and "submit --schema" in verdict.stages[-1].note


#: Changes of the content and of each row of scores: the stage that fails, and what its note has.
WRONG: dict[str, tuple[str, str, Callable[[Content], object], Callable[[Content], object]]] = {
    "metric that does not exist": (
        "figures", "unknown metric", lambda content: content.update(figures=[{**FIGURE, "metric": "d2.none"}]), as_is,
    ),
    "value out of bounds": (
        "figures", "outside its bounds",
        lambda content: content.update(figures=[{**FIGURE, "metric": "d1.selectivity", "value": 7}]), as_is,
    ),
    "value outside its interval": (
        "figures", "outside its bounds", lambda content: content.update(figures=[{**FIGURE, "ci_low": 0.6}]), as_is,
    ),
    "figure that the scores give": (
        "figures", "d1.auroc is computed from passage_scores.parquet",
        lambda content: content.update(figures=[{**FIGURE, "metric": "d1.auroc", "layer": 0}]), as_is,
    ),
    "figure twice": (
        "figures", "of one metric, block and layer", lambda content: content.update(figures=[FIGURE, FIGURE]), as_is,
    ),
    "concept of no setting": (
        "figures", "not a concept of config.resolved.yaml",
        lambda content: content.update(figures=[{**FIGURE, "block": "planning"}]), as_is,
    ),
    "figures of another corpus": (
        "corpus", "dataset_revision is other", lambda content: content.update(dataset_revision="other"), as_is,
    ),
    "turned labels": ("corpus", "another label", as_is, lambda row: row.update(label=1 - row["label"])),
    "other folds": ("corpus", "another label, group or fold", as_is, lambda row: row.update(fold=0)),
    "two scores of a passage": (
        "figures", "two scores of a passage", as_is, lambda row: row.update(passage_id="one", split="test"),
    ),
    "test passages alone": (
        "figures", "train passages at each of its layers",
        as_is, lambda row: row.update(layer=1) if row["split"] == "test" else None,
    ),
    "one concept alone": (
        "cells", "hedging", as_is, lambda row: row.update(concept="contrast") if row["concept"] == "hedging" else None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_no_schema_can_say_is_checked_by_the_reader(name: str, written: Path, tmp_path: Path) -> None:
    stage, why, content, row = WRONG[name]
    verdict = verify(changed(written, tmp_path, content, row))
    assert stage in failed(verdict), verdict.stages
    assert any(check.stage == stage and why in check.note for check in verdict.stages), verdict.stages


def test_a_table_without_rows_gives_no_figures(written: Path, tmp_path: Path) -> None:
    root = changed(written, tmp_path, lambda content: content.update(figures=[FIGURE]))
    pq.write_table(pq.read_table(root / "passage_scores.parquet").slice(0, 0), root / "passage_scores.parquet")
    (root / CHECKSUMS).unlink()
    verdict = verify(with_checksums(root))
    assert failed(verdict) == ["figures"] and "needs scores of train passages" in verdict.stages[-1].note


def test_figures_without_scores_are_on_the_board_as_not_verified(written: Path, tmp_path: Path) -> None:
    def stated(content: Content) -> None:
        content["figures"] = [{**FIGURE, "layer": 3, "value": 0.2, "ci_low": 0.1, "ci_high": 0.3}]

    root = changed(written, tmp_path, stated)
    (root / "passage_scores.parquet").unlink()
    (root / CHECKSUMS).unlink()
    with_checksums(root)
    verdict = verify(root)
    assert verdict.holds and verdict.unchecked == ["signature", "figures", "model", "scores"]
    page = build([root], tmp_path / "board")
    (line,) = page.board.lines
    assert line.cells[-1].text == "figures not verified; not signed; not checked: figures, model"
    submission = json.loads((root / "submission.json").read_text())
    (root / "submission.json").write_text(json.dumps({**submission, "figures": []}))
    verdict = verify(root)
    assert failed(verdict) == ["digests", "figures"] and "neither passage_scores" in verdict.stages[-1].note


def test_a_signed_submission_names_its_signer_and_an_edited_one_fails(
    real: Made, written: Path, tmp_path: Path
) -> None:
    root = changed(written, tmp_path)
    sign(root / CHECKSUMS, real.key)
    pack(root, tmp_path / "signed.zip")
    verdict = verify(tmp_path / "signed.zip", signers=real.signers)
    assert verdict.holds and verdict.stages[1].note == "signed by me@example.org"
    settings = yaml.safe_load((root / "config.resolved.yaml").read_text())
    (root / "config.resolved.yaml").write_text(yaml.safe_dump({**settings, "seed": 1}))
    assert {"digests", "corpus"} <= set(failed(verify(root)))
    (root / "config.resolved.yaml").unlink()
    assert "lacks config.resolved.yaml" in verify(root).stages[0].note
    (root / "other.json").write_text("{}")
    verdict = verify(root)
    assert failed(verdict) == ["container"] and "does not belong into a bundle" in verdict.stages[0].note


def test_the_schema_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["poolbench-driver", "submit", "--schema"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code and json.loads(capsys.readouterr().out) == schema()
