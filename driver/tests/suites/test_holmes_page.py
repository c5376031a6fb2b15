"""Tables and page of the suite holmes, from artifacts made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.page_reader import part_of, rendered, tables_of, texts_of
from driver.tests.suites.test_holmes import planned

from poolbench.contracts import tables as t
from poolbench.contracts.measures import Measure
from poolbench.statuses import RunState
from poolbench.storage import Artifacts, open_store
from poolbench_driver.assemble import assemble
from poolbench_driver.contract.page import Passage
from poolbench_driver.pages.html import pieces
from poolbench_driver.records import RunFolder
from poolbench_driver.report import page_of
from poolbench_driver.suites.holmes.plan import HolmesPlan, Probed
from poolbench_driver.suites.holmes.rates import compared
from poolbench_driver.suites.holmes.report import joined
from poolbench_driver.suites.holmes.view import view_of, view_over

SETTINGS: dict[str, Any] = {
    "strategies": ("A1_mean", "P1_last_token"),
    "layers": ("embedding", "final"),
    "control": ("random_weights",),
    "protocol": "published",
}


def _skill(at: Probed) -> float:
    """Return the share of test instances that an entrant has right."""
    if at.control or at.set == "planted-random":
        return 0.5
    return {("A1_mean", 6): 0.95, ("P1_last_token", 6): 0.6, ("A1_mean", -1): 0.7, ("P1_last_token", -1): 0.8}[at[1:3]]


def _measures(score: float, seeds: int) -> pa.Table:
    values = [score + 0.01 * number for number in range(seeds)]
    found = Measure.of("probe.macro_f1", float(np.mean(values)), n=60)
    rows = [found.to_row(), Measure.of("probe.collapsed", float(score < 0.55)).to_row()]
    rows += [Measure.of("probe.selectivity", score / 2).to_row(), Measure.of("probe.seen_share", 0.0).to_row()]
    details = [json.dumps({"values": values}), None, None, None]
    return t.table_from_rows(rows, t.MEASURES).append_column("details", pa.array(details, pa.string()))


def _predictions(plan: HolmesPlan, at: Probed) -> pa.Table:
    tested = [row for row in plan.scope.data[at.set].instances.to_pylist() if row["split"] == "test"]
    labels = sorted({row["label"] for row in tested})
    wrong = dict(zip(labels, labels[1:] + labels[:1], strict=True))
    rows = [
        {
            "instance_id": row["instance_id"],
            "split": "test",
            "seed": 0,
            "truth": row["label"],
            "predicted": row["label"] if number < _skill(at) * len(tested) else wrong[row["label"]],
        }
        for number, row in enumerate(tested)
    ]  # fmt: skip
    return t.table_from_rows(rows, t.predictions_schema(pa.string()))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Return the folder of a run with two strategies at two layers, a control, and the published protocol."""
    plan = planned(**SETTINGS)
    artifacts = Artifacts(open_store(str(tmp_path / "store")))
    for found, seeds in ((plan.probes, 1), (plan.published, 5)):
        for at, keys in found.items():
            artifacts.write_table(keys["measures"], _measures(_skill(at), seeds))
            artifacts.write_table(keys["predictions"], _predictions(plan, at))
    made = RunFolder.create(tmp_path / "runs", plan.config)
    for name, table in assemble(plan, artifacts, {}, made.id).items():
        made.write_table(name, table)
    made.write_failures([])
    made.write_state(RunState.DONE)
    return made


def test_published_probes_are_planned_beside_ours_by_the_recipe() -> None:
    plain, made, paper = planned(), planned(protocol="published"), planned(protocol="published", recipe="paper")
    assert made.probes == plain.probes and not plain.published
    assert made.published.keys() == made.probes.keys()
    tasks = {made.producers[keys["measures"]].task_id: at.set for at, keys in made.published.items()}
    params = {name: made.tasks[task].params for task, name in tasks.items()}
    assert {each["protocol"] for each in params.values()} == {"released"}
    assert {tuple(each["seeds"]) for each in params.values()} == {(0, 1, 2, 3, 4)}
    assert {name: each["float16"] for name, each in params.items()} == {
        "planted-pos": False, "planted-role": False, "planted-random": True
    }  # fmt: skip
    assert not {key for own in made.published.values() for key in own.values()} & {
        key for own in paper.published.values() for key in own.values()
    }


def test_published_rows_are_in_a_table_of_their_own(folder: RunFolder) -> None:
    published, results = (folder.read_table(name).to_pylist() for name in ("published", "results"))
    assert {row["protocol"] for row in published} == {"published"}
    assert {row["protocol"] for row in results} == {"corrected"}
    rates = {(row["metric"], row["entrant"]): row["value"] for row in published if "winning_rate" in row["metric"]}
    assert {metric for metric, _ in rates} == {"holmes.winning_rate.row", "holmes.winning_rate.column"}
    # All entrants tie on the random set, which has no scale; the leader has the highest rank on the two others.
    assert rates["holmes.winning_rate.row", "demo A1_mean final"] == 1.0
    assert rates["holmes.winning_rate.row", "demo/random_weights A1_mean final"] == 0.0


def test_the_leader_is_tested_against_every_other_entrant(folder: RunFolder) -> None:
    rows = folder.read_table("comparisons").to_pylist()
    assert {row["entrant"] for row in rows} == {"demo A1_mean final"} and len(rows) == 7 * 3
    view = view_of(folder.tables)
    found = {each.name: view.tested(each) for each in view.entrants}
    assert found["demo A1_mean final"] == "" and found["demo/random_weights A1_mean final"] == "2 : 0"
    assert "beats demo P1_last_token embedding significantly in 2 of 3 sets, and loses in 0" in view.certainty()


def test_comparisons_by_hand() -> None:
    """Nine instances are discordant, one of them for the other entrant: 2 (1 + 9) / 512; Holm doubles the smaller."""
    rows = []
    for name, only_first, only_second in (("a", 8, 1), ("b", 3, 3)):
        for number in range(20):
            first, second = (
                number < only_first or number > 15,
                only_first <= number < only_first + only_second or number > 15,
            )
            for entrant, right in (("x", first), ("y", second)):
                predicted = "1" if right else "0"
                rows.append(
                    {
                        "set": name,
                        "entrant": entrant,
                        "instance_id": f"{name}{number}",
                        "truth": "1",
                        "predicted": predicted,
                    }
                )
    rows.append({"set": "values", "entrant": "x", "instance_id": "v", "truth": "1", "predicted": "1"})
    rows.append({"set": "a", "entrant": "y", "instance_id": "alone", "truth": "1", "predicted": "1"})
    first, second = compared("x", rows, ["a", "b"]).to_pylist()
    assert (first["set"], first["n"], first["only_entrant"], first["only_other"]) == ("a", 20, 8, 1)
    assert first["p"] == pytest.approx(20 / 512) and first["p_holm"] == pytest.approx(40 / 512)
    assert (second["p"], second["p_holm"]) == (1.0, 1.0)


def test_one_set_is_opened_with_right_and_wrong_instances(folder: RunFolder) -> None:
    rows = folder.read_table("examples").to_pylist()
    assert {row["set"] for row in rows} < {"planted-pos", "planted-role"}
    assert 0 < sum(row["right"] for row in rows) <= 3 and 0 < sum(not row["right"] for row in rows) <= 3
    for row in rows:
        assert row["right"] == (row["truth"] == row["predicted"])
        (text,) = row["texts"]
        assert all(text["text"][span["start"] : span["end"]].strip() for span in text["spans"]) and text["spans"]


def test_what_two_spans_share_is_marked_once() -> None:
    found = pieces(Passage("a <b> & c", [(4, 7), (2, 5)]))
    assert found == [("a ", False), ("<b>", True), (" &", True), (" c", False)]


def test_the_page_says_what_carries_what_and_what_is_wrong(folder: RunFolder) -> None:
    page = page_of(folder)
    html, markdown = rendered(page)
    assert page.answer.text.startswith("demo A1_mean final leads: it wins ") and "<em>demo A1_mean final</em>" in html
    for part in ("Which pooling carries what", "One set opened", "By the published definition"):
        assert part in html and part in markdown
    assert "<mark>" in html
    (published,) = tables_of(*part_of(page, "published").blocks)
    # two sets at .97 and one at .52, each over five values .01 apart
    assert "0.820 ± 0.016" in [texts[1] for texts in texts_of(published)]
    assert "| syntax | P1_last_token" in markdown
    problems = view_of(folder.tables).problems
    assert any("predict one label for all instances" in line for line in problems)


def test_random_weights_that_win_as_much_are_named(folder: RunFolder) -> None:
    found = [line for line in view_of(folder.tables).problems if line.startswith("random weights win as much")]
    assert not found


def test_a_run_of_an_earlier_version_is_still_shown(folder: RunFolder) -> None:
    for name in ("comparisons", "examples", "seeds", "published"):
        folder.file(f"{name}.parquet").unlink()
    page = page_of(folder)
    assert [part.anchor for part in page.parts] == ["pooling", "sets", "nulls", "made"]
    rendered(page)


def test_several_runs_share_one_board(folder: RunFolder, tmp_path: Path) -> None:
    """Of one run it is the run's own; of two, the entrants of both are compared on all sets."""
    alone, own = view_over([folder.finished()]), view_of(folder.tables)
    for kind in ("", *own.types):
        assert {each.name: each.value(kind) for each in alone.entrants} == {
            each.name: each.value(kind) for each in own.entrants
        }
    other = RunFolder.create(tmp_path / "others", folder.config())
    for name in ("results", "sets", "notes"):
        table = folder.read_table(name)
        if name == "results":
            rows = [row for row in table.to_pylist() if row["metric"] == "holmes.score"]
            rows = [{**row, "entrant": row["entrant"].replace("demo", "second", 1), "model": "second"} for row in rows]
            table = pa.Table.from_pylist([{**row, "value": 0.1} for row in rows], table.schema)
        other.write_table(name, table)
    entrants = folder.read_table("entrants")
    seconds = [{**row, "entrant": row["entrant"].replace("demo", "second", 1)} for row in entrants.to_pylist()]
    other.write_table("entrants", pa.Table.from_pylist(seconds, entrants.schema))
    both = view_over([folder.finished(), other.finished()])
    assert len(both.entrants) == 2 * len(own.entrants)
    assert both.entrants[0].name == "demo A1_mean final" and both.entrants[-1].name.startswith("second")
    assert (both.entrants[0].value() or 0) > (own.entrants[0].value() or 0)
    board = joined([folder.finished(), other.finished()]).board
    assert "second A1_mean final" in [texts[0] for texts in texts_of(board)]
    predictions = [
        {**row, "entrant": row["entrant"].replace("demo", "second", 1)}
        for row in folder.read_table("predictions").to_pylist()
    ]
    other.write_table("predictions", pa.Table.from_pylist(predictions, folder.read_table("predictions").schema))
    tested = view_over(
        [folder.finished(), other.finished()]
    )  # models are compared on the test instances that both have
    found = {each.name: tested.tested(each) for each in tested.entrants}
    assert found["second A1_mean final"] == "0 : 0" and found["second P1_last_token embedding"] == "2 : 0"


def test_entrants_with_few_sets_are_not_said_to_lead(folder: RunFolder, tmp_path: Path) -> None:
    """The leader loses two of its three scores: it stands last of those with a rate, and carries nothing."""
    rows = folder.read_table("results").to_pylist()
    leader = "demo A1_mean final"
    for row in rows:
        if row["metric"] == "holmes.score" and row["entrant"] == leader and row["task"] != "planted-pos":
            row |= {
                "value": None,
                "status": "no_coverage",
                "reason": f"applied to {len(row['task'])} % of the passages",
            }
    other = RunFolder.create(tmp_path / "few", folder.config())
    other.write_table("results", pa.Table.from_pylist(rows, folder.read_table("results").schema))
    for name in ("sets", "notes", "entrants"):
        other.write_table(name, folder.read_table(name))
    view = view_over([other.finished()])
    assert view.entrants[-1].name == leader and view.entrants[-1].value() == 1.0
    assert view.carried()["all sets"]["final"][0] == ("P1_last_token",)
    assert f"scores on less than half of the sets, and so not said to lead: {leader}" in view.problems
    (nulls,) = (line for line in view.problems if "no_coverage" in line)  # reasons that differ in a number are one
    assert nulls.startswith("2 scores are null")
