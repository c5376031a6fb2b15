"""What stands behind a figure: its row, tests, passages and texts, as the tables and artifacts have them."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driver.tests.page_reader import cells_of, opened, tables_of, texts_of
from driver.tests.run_folders import assembled

import poolbench_driver as pb
from poolbench.contracts.tables import PASSAGES, PROBE_SCORES, table_from_rows
from poolbench.errors import InputError, NotFoundError, UnknownNameError
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.page import Facts, Part, SideBySide
from poolbench_driver.evidence import entrant_of, evidence_of, keep_texts, store_reader
from poolbench_driver.pages.text import parts_markdown
from poolbench_driver.pages.tokens import explained_blocks
from poolbench_driver.records import Run
from poolbench_driver.suites.poolbench.evidence import wrong_first

#: Label and score by passage, in the order in which they are shown: a wrong one has a score of the other side.
SCORES = {"p1": (1, -3.0), "p2": (0, 1.0), "p3": (1, 4.0), "p4": (0, -2.0), "p5": (0, math.nan)}
LONG, MARKUP = "x" * 100_000, "<script>alert(1)</script> \u202eabc"
SIGNAL = {"start": 0, "end": 5}
KEPT = 2
WIDTH = 256  # of the demo model


def score(key: str, opening: int, strength: float, scorer: str) -> float:
    """Steering raises all openings, the fourth one least."""
    return 0.1 + (0.1 if opening == 3 else 1.0) * strength


@pytest.fixture(scope="module")
def made(steered_in: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = steered_in(tmp_path_factory.mktemp("store"), concepts=["contrast", "toxicity"], evidence=KEPT)
    for concept in made.plan.probes.concepts:
        for key in made.plan.probes.concepts[concept].scores.values():
            rows = [
                {"passage_id": name, "split": "train", "fold": 0, "label": label, "group": "g", "score": value}
                for name, (label, value) in reversed(SCORES.items())
            ]
            made.artifacts.write_table(key, table_from_rows(rows, PROBE_SCORES))
    return made.write(score)


@pytest.fixture(scope="module")
def folder(made: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = assembled(made, tmp_path_factory.mktemp("runs"))
    for concept, vectors in made.plan.vectors.concepts.items():  # the audit of these would need more of them
        for split, key in vectors.passages.items():
            texts = {name: f"{split} {name}, {made.SECRET}" for name in SCORES} | {"p1": LONG, "p2": MARKUP}
            rows = [
                {"passage_id": name, "concept": concept, "split": split, "text": text, "signal": [SIGNAL]}
                for name, text in texts.items()
            ]
            made.artifacts.write_table(key, table_from_rows(rows, PASSAGES))
    (note,) = keep_texts(made.plan, made.artifacts, folder.tables, folder)
    assert "toxicity" in note and "contrast" not in note
    return folder


def row_of(folder: Run, metric: str, concept: str = "contrast", strategy: str = "A1_mean") -> dict[str, Any]:
    return next(row for row in folder.rows("results", metric=metric, concept=concept, strategy=strategy))


def part_of(parts: list[Part], anchor: str) -> Part:
    (part,) = (part for part in parts if part.anchor == anchor)
    return part


def test_the_number_of_texts_names_no_other_run() -> None:
    """Hash of the configuration and name of the run are those without it, for every suite."""
    for suite in ("poolbench", "planted", "holmes", "humanoid"):
        settings = {"suite": suite, "preset": "demo"}
        without, with_texts = (load_run_config(None, settings | more) for more in ({}, {"evidence": 9}))
        assert with_texts.evidence == 9
        assert without.config_hash() == with_texts.config_hash()


def test_a_figure_has_its_row_and_the_tests_of_its_entrant(folder: Run) -> None:
    row = row_of(folder, "d1.auroc")
    figure, tests, _ = evidence_of(folder, row["cell_id"])
    (facts,) = figure.blocks
    assert isinstance(facts, Facts)
    pairs = dict(facts.pairs)
    assert (pairs["value"], pairs["95 % interval"], pairs["n"]) == ("0.9", "0.7 to 0.95", "40")
    assert figure.heading == "d1.auroc, A1_mean, contrast, layer 2" and "AUROC" in pairs["definition"]
    (pair,) = folder.rows("pairwise", metric="d1.auroc", board="all")
    assert (pair["strategy"], pair["other"]) == ("A1_mean", "L5_keyword")
    for entrant, other, sign in (("A1_mean", "L5_keyword", 1), ("L5_keyword", "A1_mean", -1)):
        _, tests, _ = evidence_of(folder, row_of(folder, "d1.auroc", strategy=entrant)["cell_id"])
        cells = cells_of(*tables_of(*tests.blocks))[other]
        assert float(cells["value difference"]) == pytest.approx(sign * pair["value_difference"])
        assert float(cells["rank difference"]) == sign * pair["rank_difference"] and cells["concepts"] == "2"
        assert cells["verdict"] == "not distinguished" and "Over 2 no p can be below 0.5" in tests.note


def test_passages_come_wrong_ones_first_with_the_texts_that_are_kept(folder: Run) -> None:
    part = part_of(evidence_of(folder, row_of(folder, "d1.auroc")["cell_id"]), "passages")
    (table,) = tables_of(*part.blocks)
    assert [texts[:3] for texts in texts_of(table)] == [["wrong", "-3.000", "with"], ["wrong", "+1.000", "without"]]
    (cut,), (markup,) = (line.cells[3].passages for line in table.lines)
    assert cut.text.startswith("xxx") and len(cut.text) < 2100 and cut.text.endswith("2,000 of 100,000 characters]")
    assert markup.text == MARKUP and list(markup.marks) == [(0, 5)]
    rows = [{"passage_id": name, "label": label, "score": value} for name, (label, value) in SCORES.items()]
    assert [row["passage_id"] for row in wrong_first(rows[::-1])] == ["p1", "p2", "p3", "p4", "p5"]


def test_steered_texts_stand_beside_the_unsteered_one_by_strength(made: Any, folder: Run) -> None:
    part = part_of(evidence_of(folder, row_of(folder, "d2.best_gain")["cell_id"]), "texts")
    first, second = part.blocks
    assert isinstance(first, SideBySide) and isinstance(second, SideBySide)
    captions, texts = zip(*first.texts, strict=True)
    perplexity = f"perplexity {math.exp(2):.3g}"
    assert captions[0] == f"unsteered, contrast 0.100, {perplexity}"
    receipt = "vector 0000000000000000 at 20 of 20 positions"
    assert captions[1:] == tuple(
        f"strength {strength:g}, contrast {score('', 3, strength, ''):.3f}, {perplexity}, {receipt}"
        for strength in made.plan.config.budget.strengths
    )
    direction = f"A1_mean/{made.plan.config.steering.direction}"
    assert texts[1].text == f"Opening 3 goes on along {direction} at 0.06, {made.SECRET}"
    assert [texts[1].text[start:end] for start, end in texts[1].marks] == [texts[1].text.removeprefix("Opening 3")]
    assert second.texts[0][1].text.startswith("Opening 0 ")


def test_nothing_of_a_sensitive_concept_is_kept_or_shown(
    made: Any, folder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOLBENCH_SENSITIVE", "true")
    keep_texts(made.plan, made.artifacts, folder.tables, folder)
    assert set(folder.read_table("evidence")["block"].to_pylist()) == {"contrast", ""}
    for metric in ("d1.auroc", "d2.best_gain"):
        reader = store_reader(made.plan, made.artifacts)
        markdown = "".join(parts_markdown(evidence_of(folder, row_of(folder, metric, "toxicity")["cell_id"], reader)))
        assert made.SECRET not in markdown and "xxxx" not in markdown
    shown = evidence_of(folder, row_of(folder, "d1.auroc", "toxicity")["cell_id"])[-1]
    assert "sensitive" in shown.note and [texts[0] for texts in texts_of(*tables_of(*shown.blocks))] == ["wrong"] * 2


def test_without_kept_texts_the_store_has_them_or_ids_stand_in_their_place(made: Any, folder: Run) -> None:
    cells = [row_of(folder, metric)["cell_id"] for metric in ("d1.auroc", "d2.best_gain")]
    from_folder = [evidence_of(folder, cell) for cell in cells]
    folder.file("evidence.parquet").unlink()
    reader = store_reader(made.plan, made.artifacts)
    assert [evidence_of(folder, cell, reader) for cell in cells] == from_folder
    without = evidence_of(folder, cells[0])[-1]
    assert [texts[3] for texts in texts_of(*tables_of(*without.blocks))] == ["p1", "p2"]
    assert "--evidence N" in without.note
    none = replace(made.plan, config=made.plan.config.model_copy(update={"evidence": 0}))
    keep_texts(made.plan, made.artifacts, folder.tables, folder)
    assert keep_texts(none, made.artifacts, folder.tables, folder) == []
    assert not folder.file("evidence.parquet").exists()


def test_python_reads_scores_with_texts_and_sensitive_concepts_without(made: Any, folder: Run) -> None:
    keep_texts(made.plan, made.artifacts, folder.tables, folder)
    run = pb.load(folder.path)
    texts = {row["passage_id"]: row["text"] for row in run.passages(concept="contrast", strategy="A1_mean")}
    assert texts == {"p1": LONG, "p2": MARKUP, "p3": None, "p4": None, "p5": None}
    assert set(run.passages(concept="toxicity").arrow["text"].to_pylist()) == {None}
    steered = run.texts(concept="contrast", name="A1_mean").to_pylist()
    assert {row["text"] is None for row in steered} == {True, False} and "prompt" in steered[0]
    assert any(row["text"] for row in run.texts(name="unsteered"))
    assert {row["text"] for row in run.texts(concept="toxicity")} == {None}
    with pytest.raises(UnknownNameError, match="did you mean contrast"):
        run.passages(concept="contrats")
    with pytest.raises(NotFoundError, match="has no table 'words'; it has"):
        run.table("words")
    shown = run.behind(row_of(folder, "d1.auroc")["cell_id"])
    assert "&lt;scri" in shown._repr_html_() and "<script" not in shown._repr_html_()
    assert "Passages by the probe" in str(shown)


def test_python_shows_answer_board_and_picture_of_a_run(folder: Run, tmp_path: Path) -> None:
    run = pb.load(folder.path)
    assert run.page is run.page and run.answer.text == run.page.answer.text
    names = [line.cells[0].text for line in run.page.board.lines]
    assert run.board.arrow.column(0).to_pylist() == names
    for shown in (run, run.answer, run.board, run.picture):
        html = shown._repr_html_()
        assert html.startswith('<div class="poolbench ') and "<script" not in html and "data-opens" not in html
    assert run.picture is not None and "<svg" in run.picture._repr_html_()
    starts = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG"}
    for form, start in starts.items():
        assert run.picture.save(tmp_path / f"picture.{form}").read_bytes().startswith(start)
    for wrong in ("picture.jpg", "nowhere/picture.svg"):
        with pytest.raises(InputError, match="picture"):
            run.picture.save(tmp_path / wrong)


def test_all_that_a_page_opens_is_there(folder: Run) -> None:
    paths = opened(folder)
    assert {path.partition("/")[0] for path in paths} == {"cells", "entrants"}
    (entrant, _) = paths["entrants/A1_mean"][0].blocks
    line = next(line for line in entrant.lines if [cell.text for cell in line.cells[:2]] == ["contrast", "2"])
    row = row_of(folder, "d1.auroc")
    assert (line.cells[2].value, line.cells[2].opens) == (row["value"], f"cells/{row['cell_id']}")
    with pytest.raises(NotFoundError, match="no cell 'other'"):
        evidence_of(folder, "other")
    with pytest.raises(UnknownNameError, match="A1_mean"):
        entrant_of(folder, "A1_men")


def test_tokens_are_shaded_by_contribution_and_have_their_numbers_as_text() -> None:
    tokens = [
        {"text": "", "start": 0, "end": 0, "weight": 0.0, "contribution": 0.0},
        {"text": "It", "start": 0, "end": 2, "weight": 0.5, "contribution": -1.0},
        {"text": " rains", "start": 2, "end": 8, "weight": 0.5, "contribution": 4.0},
    ]
    answer = {"status": "ok", "reason": None, "projection": 3.0, "tokens": tokens}
    text, table = explained_blocks("It rains", answer)
    assert isinstance(text, SideBySide)
    ((_, shaded),) = text.texts
    assert (list(shaded.marks), list(shaded.shades)) == ([(0, 2), (2, 8)], [-3, 8])
    assert texts_of(*tables_of(table)) == [
        ["(special)", "0.0000", "+0.0000"], ["It", "0.5000", "-1.0000"], [" rains", "0.5000", "+4.0000"]
    ]  # fmt: skip
    (reason,) = explained_blocks("It rains", answer | {"status": "too_few", "reason": "no token", "projection": None})
    assert "too_few: no token" in "".join(parts_markdown([Part("x", "x", [reason])]))
    many = [tokens[2] | {"start": place, "end": place + 1} for place in range(3000)]
    shaded, table = explained_blocks("y" * 3000, answer | {"tokens": many, "projection": None})
    assert "the first 500 of 3,000 tokens" in tables_of(table)[0].note
    assert len(shaded.texts[0][1].marks) == 2000 == len(shaded.texts[0][1].shades)
