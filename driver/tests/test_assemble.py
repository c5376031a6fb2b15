"""Rows and report from hand-made artifacts: complete and failed; nothing restricted gets out."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.page_reader import rendered
from driver.tests.run_folders import rows_of, written

from poolbench.contracts.measures import Measure
from poolbench.statuses import Status
from poolbench.storage import Artifacts
from poolbench_driver.assemble import assemble
from poolbench_driver.records import Run
from poolbench_driver.records.folder import create_run
from poolbench_driver.report.making import page_of, write_report
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.plan import ConceptsPlan

STRATEGIES = {"strategies": ("A1_mean", "L5_keyword")}
MEASURED = ("contrast", "toxicity")


def rising(key: str, opening: int, strength: float, scorer: str) -> float:
    """A measured concept's score rises with strength along a strategy's direction; nothing else changes any."""
    slope = 1.0 if scorer in MEASURED and "null" not in key else 0.0
    return min(0.2 + 0.01 * opening + slope * strength, 1.0)


@pytest.fixture(scope="module")
def made(steered_in: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[ConceptsPlan, Artifacts]:
    made = steered_in(tmp_path_factory.mktemp("store"), concepts=list(MEASURED), **STRATEGIES).write(rising)
    return made.plan, made.artifacts


@pytest.fixture(scope="module")
def complete(made: tuple[ConceptsPlan, Artifacts]) -> dict[str, pa.Table]:
    return assemble(*made, {}, "run-1")


def test_a_further_direction_is_an_entrant_of_its_own(steered_in: Any, tmp_path: Path) -> None:
    """Texts along C5 rise twice as fast. Their keys, and those along C1, are those of runs along one of them."""

    def score(key: str, opening: int, strength: float, scorer: str) -> float:
        return min(rising(key, opening, strength, scorer) + (strength if ":direction=C5" in key else 0.0), 1.0)

    settings = {"concepts": ["contrast"], "saes": [{"layer": 2, "path": "sae"}], **STRATEGIES}
    made = steered_in(tmp_path / "both", steering={"further": ["C5", "C1"]}, **settings).write(score)
    texts = made.plan.steering.texts.concepts["contrast"].texts
    scores = made.plan.steering.scores.concepts["contrast"]
    entrants = ["A1_mean", "A1_mean:direction=C5", "L5_keyword", "L5_keyword:direction=C5", "nulls"]
    assert sorted(texts) == sorted(scores) == entrants
    for direction, ending in (("C1", ""), ("C5", ":direction=C5")):
        alone = steered_in(tmp_path / direction, steering={"direction": direction}, **settings).plan.steering
        for strategy in STRATEGIES["strategies"]:
            assert alone.texts.concepts["contrast"].texts[strategy] == texts[strategy + ending]
            assert alone.scores.concepts["contrast"][strategy] == scores[strategy + ending]
    tables = assemble(made.plan, made.artifacts, {}, "run-1")
    gains = {row["strategy"]: (row["value"], row["direction"]) for row in rows_of(tables, metric="d2.best_gain")}
    assert gains["A1_mean"] == (pytest.approx(0.5), "C1") and gains["A1_mean:direction=C5"][1] == "C5"
    assert gains["A1_mean:direction=C5"][0] > gains["A1_mean"][0]
    named = {row["strategy"]: row["construction"] for row in tables["directions"].to_pylist()}
    assert named["A1_mean:direction=C5"] == "C5" and named["A1_mean"] == "C1"
    board = page_of(written(create_run(tmp_path / "runs", made.plan.config), tables)).board
    lines = {line.cells[0].text: line for line in board.lines}
    heads = [column.head for column in board.columns]
    shown = dict(zip(heads, (cell.text for cell in lines["A1_mean:direction=C5"].cells), strict=True))
    assert not lines["A1_mean:direction=C5"].reason and float(shown["d2.best_gain"]) > 0.5
    assert "is steered along that construction" in board.note


def test_directions_are_named_with_their_figures_but_for_sensitive_concepts(
    made: tuple[ConceptsPlan, Artifacts], complete: dict[str, pa.Table]
) -> None:
    found = complete["directions"].to_pylist()
    assert {row["concept"] for row in found} == {"contrast"}
    steered, probed = found[0], next(row for row in found if row["gain"] is None)
    assert (steered["strategy"], steered["layer"], steered["construction"]) == ("A1_mean", 4, "C1")
    assert steered["gain"] == pytest.approx(0.5)
    assert steered["gain_where_chosen"] == pytest.approx(0.5)
    assert steered["best_strength"] == steered["fluent_strength"] == 0.5  # the highest of the grid
    assert steered["key"] == made[0].probes.concepts["contrast"].directions["A1_mean", 4]
    assert (probed["strategy"], probed["layer"], probed["d1"], probed["fluent_strength"]) == ("A1_mean", 2, 0.9, None)


def test_a_collapsed_strategy_has_no_direction(steered: Any) -> None:
    made = steered(**STRATEGIES).write(rising)
    key = made.plan.probes.concepts["contrast"].measures["A1_mean", 2]
    made.artifacts.delete(key)
    nulls = (Measure.null(name, Status.COLLAPSED, "all are equal") for name in ("d1.auroc", "d1.direction.C1"))
    made._measures(key, *nulls)
    found = assemble(made.plan, made.artifacts, {}, "run-1")["directions"].to_pylist()
    cells = {(row["strategy"], row["layer"]) for row in found if row["concept"] == "contrast"}
    assert cells == {("A1_mean", 4), ("L5_keyword", 2), ("L5_keyword", 4)}


def test_a_failed_task_is_a_row_with_its_reason(steered: Any) -> None:
    made = steered(**STRATEGIES).write(rising)
    plan, artifacts = made.plan, made.artifacts
    measures, texts = plan.probes.concepts["contrast"].measures, plan.steering.texts.concepts["contrast"].texts
    lost = {measures["A1_mean", 2]: "too_few", texts["L5_keyword"].texts: "failed"}
    failures = {}
    for key, status in lost.items():
        artifacts.delete(key)
        task = plan.producers[key]
        failures[task.task_id] = Failure(task.task_id, task.kind, status, f"because of {status}")
    tables = assemble(plan, artifacts, failures, "run-1")
    (d1,) = rows_of(tables, metric="d1.auroc", strategy="A1_mean")
    assert (d1["value"], d1["status"], d1["reason"]) == (None, "too_few", "because of too_few")
    for row in rows_of(tables, metric="d2.scp", strategy="L5_keyword"):
        assert (row["value"], row["status"], row["reason"]) == (None, "failed", "because of failed")
    (other,) = rows_of(tables, metric="d1.auroc", strategy="L5_keyword")
    assert other["value"] == 0.8
    (cosine,) = rows_of(tables, metric="d3.rep_ld", strategy="L5_keyword")
    assert cosine["status"] == "ok"  # directions do not need the texts


def test_a_scorer_that_could_not_be_trained_has_its_name_and_reason_on_the_page(steered: Any, tmp_path: Path) -> None:
    made = steered(**STRATEGIES).write(rising)
    plan, failures = made.plan, dict[str, Failure]()
    keys = plan.steering.scorers.concepts["contrast"]
    for key in (keys.training, keys.gate):
        made.artifacts.delete(key)
        task = plan.producers[key]
        failures[task.task_id] = Failure(task.task_id, task.kind, Status.FAILED, "no memory")
    tables = assemble(plan, made.artifacts, failures, "run-1")
    assert {row["scorer"] for row in rows_of(tables, metric="scorer.auroc")} >= {"contrast"}
    folder = _finished(plan, tables, tmp_path, list(failures.values()))
    (scorers,) = [part for part in page_of(folder).parts if part.anchor == "scorers"]
    assert "no memory" in str(scorers)


def test_prompting_is_a_figure_of_each_concept_beside_the_best_steering(
    steered: Any, steered_in: Any, tmp_path: Path
) -> None:
    def asked(key: str, opening: int, strength: float, scorer: str) -> float:
        return 0.3 + 0.03 * opening if key == "prompted" else rising(key, opening, strength, scorer)

    made = steered(concepts=list(MEASURED), prompted=True, **STRATEGIES).write(asked)
    tables = assemble(made.plan, made.artifacts, {}, "run-1")
    (row,) = rows_of(tables, metric="d2.prompted", concept="contrast")
    num_openings = made.plan.scope.config.budget.num_openings
    # By opening .3 + .03 n against .2 + .01 n: the gain is .1 + .02 n.
    assert row["value"] == pytest.approx(0.1 + 0.02 * (num_openings - 1) / 2) and row["n"] == num_openings
    assert row["ci_low"] < row["value"] < row["ci_high"] and row["strategy"] is None
    (key,) = {prompted.texts["prompted"].texts for prompted in [made.plan.steering.prompted.concepts["toxicity"]]}
    assert key.startswith("restricted.")
    neutral = {prompted.texts["neutral"].texts for prompted in made.plan.steering.prompted.concepts.values()}
    assert len(neutral) == 1
    view = rendered(page_of(_finished(made.plan, tables, tmp_path, [])))
    assert "Prompting as a baseline" in view[1]
    invalid = steered_in(tmp_path / "other", concepts=["contrast"], prompted=True, **STRATEGIES).write(asked, gate=0.0)
    (row,) = rows_of(assemble(invalid.plan, invalid.artifacts, {}, "run-2"), metric="d2.prompted")
    assert row["value"] is None and row["status"] == "scorer_invalid"


def test_a_neighbour_without_passages_costs_only_what_compares_with_it(steered: Any) -> None:
    made = steered(absent={"causation": "the corpus has no causation"}).write(rising)
    tables = assemble(made.plan, made.artifacts, {}, "run-1")
    distant = rows_of(tables, strategy="A1_mean", neighbour="causation")
    assert {row["metric"] for row in distant} >= {"d3.robust_ld", "d3.rep_ld"}
    assert all((row["status"], row["reason"]) == ("no_scorer", "the corpus has no causation") for row in distant)
    (close,) = rows_of(tables, strategy="A1_mean", neighbour="negation_density", metric="d3.robust_lc")
    (gain,) = rows_of(tables, strategy="A1_mean", metric="d2.best_gain")
    assert close["value"] is not None and gain["value"] is not None


def test_nothing_restricted_leaves_the_store(
    made: tuple[ConceptsPlan, Artifacts], complete: dict[str, pa.Table], tmp_path: Path
) -> None:
    """Scores are public; passages, texts and vectors are not, whatever columns an artifact carries."""
    folder, secret = _finished(made[0], complete, tmp_path, []), "SECRET"
    texts = made[1].read_table(made[0].steering.texts.concepts["contrast"].texts["A1_mean"].texts)
    assert secret in texts["text"][0].as_py()
    for name, table in complete.items():
        assert not {"text", "prompt", "vector", "token_ids"} & set(table.schema.names), name
        assert not any(pa.types.is_fixed_size_list(kind) for kind in table.schema.types), name
        assert secret not in json.dumps(table.to_pylist())
    assert secret not in (folder.path / "report" / "index.html").read_text()
    assert any(row["concept"] == "toxicity" and row["value"] is not None for row in complete["results"].to_pylist())
    names = {row["passage_id"] for row in complete["passage_scores"].to_pylist() if row["concept"] == "toxicity"}
    assert names and "p1" not in names  # ids of real corpora name the document


def test_the_report_shows_the_run_and_escapes_what_it_quotes(
    made: tuple[ConceptsPlan, Artifacts], complete: dict[str, pa.Table], tmp_path: Path
) -> None:
    failure = Failure("t1", "prober.probe", "failed", "<script>alert(1)</script>")
    folder = _finished(made[0], complete, tmp_path, [failure])
    page = (folder.path / "report" / "index.html").read_text()
    for part in ("Board", "Response curves", "<svg", "L5_keyword", "contrast"):
        assert part in page
    rendered(page_of(folder))
    view = json.loads((folder.path / "report" / "view.json").read_text())
    assert view["answer"]["sentences"][-1] == (
        "2 concepts are enough to find a difference of 0.02 in d1.auroc between the first two (A1_mean and L5_keyword; "
        "a paired t-test has a power of 1.00); a test of ranks needs 6."
    )
    (nulls,) = (part for part in view["parts"] if part["anchor"] == "nulls")
    assert [line["cells"][0]["text"] for line in nulls["blocks"][1]["lines"]] == ["t1"]
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


def _finished(plan: ConceptsPlan, tables: dict[str, pa.Table], output: Path, failures: list[Failure]) -> Run:
    folder = written(create_run(output / "runs", plan.scope.config), tables, failures)
    write_report(folder)
    return folder
