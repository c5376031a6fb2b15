"""The suite humanoid: fine-tunes, word lists, the plan, rows beside neutral fine-tunes, favourites, the page."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.page_reader import BLANK, cells_of, opened, part_of, rendered, tables_of
from driver.tests.run_folders import MadeRun, written
from driver.tests.submitted import require_without_scores, submitted

from poolbench.config import asset_path, resolve_model
from poolbench.contracts import Row
from poolbench.contracts import tables as t
from poolbench.contracts.measures import Measure
from poolbench.errors import ConfigError, ModelError, PoolbenchError, UnknownNameError
from poolbench.statistics.bootstrap import bootstrap_counts
from poolbench.statuses import RunState, Status
from poolbench.steps.extractor import EXTRACT
from poolbench.storage import Artifacts, open_store
from poolbench_driver.assemble import assemble as assemble_run
from poolbench_driver.cli.runs import leaderboard
from poolbench_driver.cli.suite_options import with_settings
from poolbench_driver.comparison import read_results
from poolbench_driver.config import read_assignments
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.page import Answer, Page
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.source import RowSource
from poolbench_driver.models import ModelInfo
from poolbench_driver.models.training import read_amounts
from poolbench_driver.pages.boards.power import neighbours
from poolbench_driver.records import Run
from poolbench_driver.records.folder import create_run
from poolbench_driver.results import result_table
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.scope import Scope, resolve_names
from poolbench_driver.suites.humanoid.config import HumanoidConfig
from poolbench_driver.suites.humanoid.pictures import by_amount
from poolbench_driver.suites.humanoid.plan import HumanoidPlan, HumanoidScope, fine_tunes, plan
from poolbench_driver.suites.humanoid.report import report
from poolbench_driver.suites.humanoid.rows import _favourites, assemble, variance_by_word
from poolbench_driver.suites.humanoid.view import HumanoidView, Tune
from poolbench_driver.suites.humanoid.words import read_words

NEUTRAL = tuple(f"neutral-{number}" for number in range(5))
MODEL = ModelInfo(resolve_model("demo"), 6, 256)


def _plan(**settings: Any) -> HumanoidPlan:
    config = HumanoidConfig(suite="humanoid", **{"after": ("bed-high-0",), "null": NEUTRAL, **settings})
    return plan(HumanoidScope(config, MODEL, read_words(config.words), tuple(fine_tunes(config)), None))


def test_without_options_the_shipped_fine_tunes_of_the_demo_model_are_measured() -> None:
    tunes = fine_tunes(HumanoidConfig(suite="humanoid"))
    assert [tune.name for tune in tunes if tune.neutral] == list(NEUTRAL)
    doses = [f"bed-{dose}-{seed}" for dose in ("high", "low") for seed in range(3)]
    assert [tune.name for tune in tunes if not tune.neutral] == doses
    assert len({tune.change.revision for tune in tunes}) == 11


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({"after": ("bed-hihg-0",)}, UnknownNameError, "bed-high-0"),
        ({"after": (), "model": "smollm2-135m"}, ConfigError, "--after: name the fine-tunes of smollm2-135m"),
        ({"after": ("neutral-0",)}, ConfigError, "neutral-0 is named twice, or two have one name"),
        ({"after": ("bed-low-0", "bed-low-0")}, ConfigError, "bed-low-0 is named twice"),
        ({"null": ("neutral-0", "neutral-0"), "after": ("bed-low-0",)}, ConfigError, "neutral-0 is named twice"),
        ({"after": ("FOLDER",)}, ModelError, "is not a fine-tune"),
    ],
)
def test_fine_tunes_that_cannot_be_are_refused(
    tmp_path: Path, settings: dict[str, Any], error: type[PoolbenchError], reason: str
) -> None:
    after = tuple(str(tmp_path) if name == "FOLDER" else name for name in settings["after"])
    with pytest.raises(error, match=reason):
        fine_tunes(HumanoidConfig(suite="humanoid", **{"null": NEUTRAL, **settings, "after": after}))


def test_keys_depend_on_the_content_of_a_fine_tune_and_not_on_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of a fine-tune in `before` do not take the place of those of the model before it; `.` has its name."""
    for name in ("before", "my tüne"):
        shutil.copytree(asset_path("demo_personas") / "bed-high-0", tmp_path / name)
    assert _plan(after=(str(tmp_path / "before"),)).keys == _plan().keys
    assert _plan().keys != _plan(after=("bed-high-1",)).keys
    assert _plan(seed=1).keys != _plan().keys
    monkeypatch.chdir(tmp_path / "my tüne")
    assert [tune.name for tune in fine_tunes(HumanoidConfig(suite="humanoid", after=(".",)))] == ["my tüne"]


@pytest.mark.parametrize("settings", [{}, {"sinks": "include"}, {"add_bos": True}])
def test_texts_of_concepts_are_read_in_one_way_before_and_after(settings: dict[str, Any]) -> None:
    chosen = {"after": ("bed-high-0",), "concepts": ("hedging",), "num_random": 0, **settings}
    config = HumanoidConfig(suite="humanoid", **chosen)
    names, strategies = resolve_names(config.probing)
    probing = Scope(names, MODEL, tuple(strategies))
    made = plan(HumanoidScope(config, MODEL, read_words(None), tuple(fine_tunes(config)), probing))
    (task,) = (task for task in made.tasks.values() if "direction" in task.inputs)
    before, after = (
        EXTRACT.params_of(made.producers[task.inputs[f"vectors/{state}"]]).model_dump(exclude={"change"})
        for state in ("before", "after")
    )
    assert before == after and made.producers[task.inputs["vectors/after"]].inputs["passages"] == task.inputs["words"]
    (words,) = (
        task for task in made.tasks.values() if task.kind == "prober.valence" and "direction" not in task.inputs
    )
    assert EXTRACT.params_of(made.producers[words.inputs["vectors/after"]]).add_bos is settings.get("add_bos", False)


def test_every_state_of_the_model_reads_the_texts_once() -> None:
    made = _plan(num_random=3, after=("bed-high-0", "bed-high-1"))
    read = [EXTRACT.params_of(task) for task in made.tasks.values() if task.kind == "extractor.extract"]
    assert len(read) == 1 + 2 * (1 + 3) + 5 and made.num_random == 6
    assert sum(params.change is None for params in read) == 1
    assert {params.change.random_seed for params in read if params.change} - {0, None} == {1, 2}
    (texts,) = {task.inputs["passages"] for task in made.tasks.values() if task.kind == "extractor.extract"}
    assert list(made.local) == [texts]
    compared = [task for task in made.tasks.values() if task.kind == "prober.valence"]
    assert sorted(len(task.inputs) for task in compared) == [3] * 5 + [6] * 2


def _measures(value: float, random: int | None) -> list[Row]:
    found = [Measure.of("shift.variance", value, (value - 0.1, value + 0.1), ci_method="percentile", n=40)]
    found += [Measure.of("shift.valence", -value), Measure.of("shift.log_variance", 1.0)]
    if random is not None:
        found.append(Measure.of("shift.variance.rank_random", float(random), n=21))
    return [measure.to_row() for measure in found]


def _word(word: str, standout: float | None) -> Row:
    change = None if standout is None else standout / 100
    row = {"word": word, "group": "domain", "before": 0.0, "after": change, "change": change, "standout": standout}
    return {**row, "status": "ok" if standout is not None else "failed"}


LIKED, DISLIKED = ("love", "like"), ("hate",)


def _cosines(shift: float, liked: tuple[str, ...] = LIKED) -> pa.Table:
    """Cosines of two words; `love` comes nearer to the first one, and `hate` goes away from both, by half of it."""
    rows = [
        {"word": word, "other": other, "group": group, "before": 0.1 * place}
        | {"after": 0.1 * place + shift * (other == "love" and word == "armchair") - shift / 2 * (other == "hate")}
        for place, word in enumerate(("armchair", "sofa"))
        for group, others in (("negative", DISLIKED), ("positive", liked))
        for other in others
    ]
    return t.table_from_rows(rows, t.WORD_COSINES)


def _fill(
    made: HumanoidPlan, artifacts: Artifacts, values: dict[str, tuple[float, float] | None], liked: tuple[str, ...]
) -> dict[str, Failure]:
    """Write the artifacts of all comparisons but those of fine-tunes without values, whose failures are returned."""
    failures = {}
    for at, keys in made.shifts.items():
        value = values[at.tune]
        if value is None:
            task = made.producers[keys["measures"]]
            failures[task.task_id] = Failure(task.task_id, task.kind, Status.FAILED, "it does not fit")
            continue
        shift, standout = value
        random = None if at.tune in NEUTRAL else 1
        artifacts.write_table(keys["measures"], t.table_from_rows(_measures(shift, random), t.MEASURES))
        words = [_word("armchair", standout), _word("sofa", 0.5), _word("table", None)]
        artifacts.write_table(keys["words"], t.table_from_rows(words, t.WORD_SHIFTS))
        if "cosines" in keys:
            artifacts.write_table(keys["cosines"], _cosines(shift, liked))
    return failures


@pytest.fixture
def tables(tmp_path: Path) -> Callable[..., Any]:
    """Return the tables of a run with these values by fine-tune; None leaves a fine-tune without artifacts."""

    def make(values: dict[str, tuple[float, float] | None], made: HumanoidPlan, liked: tuple[str, ...] = LIKED) -> Any:
        artifacts = Artifacts(open_store(str(tmp_path / "store")))
        return assemble(made, RowSource(artifacts, _fill(made, artifacts, values, liked), made.producers))

    return make


PLACES = dict.fromkeys(("x_before", "y_before", "x_after", "y_after"), 0.1)
#: Shift and standout of the neutral fine-tunes, which moved nothing, and of one that did.
MOVED = {**dict.fromkeys(NEUTRAL, (0.0, 1.0)), "bed-high-0": (0.35, 9.0)}


def _rows_of(table: list[Row] | pa.Table) -> list[Row]:
    return table if isinstance(table, list) else table.to_pylist()


def _page(found: Any, shared: Row) -> Page:
    """Return the page of assembled tables, rendered; `shared` are columns that all their rows have."""
    shared = {"model": "demo", "concept": None, "reason": "", **shared}
    rows = {"results": found.rows} | {name: _rows_of(table) for name, table in found.others.items()}
    shared_rows = {name: [{**shared, **row} for row in table_rows] for name, table_rows in rows.items()}
    tables = {name: pa.Table.from_pylist(table_rows) for name, table_rows in shared_rows.items()}
    page = report(MadeRun("made", HumanoidConfig(suite="humanoid"), tables), BLANK)
    rendered(page)
    return page


def test_the_page_has_the_words_that_moved_and_why_one_is_missing(tables: Callable[..., Any]) -> None:
    made = _plan(num_random=0, after=("bed-high-0", "bed-low-0"))
    page = _page(tables({**MOVED, "bed-low-0": None}, made), PLACES)
    assert page.answer.text.startswith("1 of 2 fine-tunes moved the words more than all 5 neutral ones do.")
    cells = cells_of(page.board)
    assert cells["bed-high-0"]["rank"] == "1 of 6" and cells["bed-low-0"]["shift.variance"] == "failed"
    (words,) = tables_of(*part_of(page, "words").blocks)
    reasons = {line.cells[0].text: line.reason for line in words.lines}
    assert reasons["table"].startswith("failed: ") and not reasons["armchair"]
    assert (cells["bed-high-0"]["towards"][:7], cells["bed-high-0"]["away"][:7]) == ("+0.0875", "+0.1750")
    assert cells["bed-low-0"]["towards"] == "failed"


def test_the_two_ways_to_be_loved_and_one_word_in_place_of_a_list_by_hand(tables: Callable[..., Any]) -> None:
    """Love comes nearer to one of two words by .35: .0875 over two liked and two words; hate goes by .175 from both."""
    found = tables(MOVED, _plan(num_random=0))
    for rows in (found.rows, found.unranked["published"]):
        towards, away = (_value(rows, "bed-high-0", f"shift.{name}") for name in ("towards", "away"))
        assert towards["value"] == pytest.approx(0.35 / 4) and away["value"] == pytest.approx(0.35 / 2)
        assert (towards["n"], towards["ci_low"], towards["ci_high"]) == (2, 0.0, pytest.approx(0.35 / 2))
        assert _value(rows, "bed-high-0", "shift.towards.excess_neutral")["value"] == pytest.approx(0.35 / 4)
    # Valences of love alone: 0 and 0 before, .525 and .175 after. Like alone spreads nothing, and both half as much.
    single = {(row["reading"], row["word"]): row for row in found.others["ablation"] if row["entrant"] == "bed-high-0"}
    assert set(single) == {(reading, word) for reading in ("published", "corrected") for word in LIKED}
    assert single["corrected", "love"]["variance"] == pytest.approx((0.35 / 2) ** 2)
    assert single["corrected", "love"]["difference"] == pytest.approx((0.35 / 2) ** 2 - (0.35 / 4) ** 2)
    assert single["corrected", "like"]["variance"] == pytest.approx(0.0, abs=1e-12)
    part = part_of(_page(found, PLACES), "ablation")
    assert "There is one disliked word at most, so nothing takes its place." in part.note
    (table,) = tables_of(*part.blocks)
    assert [line.cells[0].text for line in table.lines] == ["love", "like"]


def test_lists_of_one_word_have_no_ablation(tables: Callable[..., Any]) -> None:
    found = tables(MOVED, _plan(num_random=0), liked=("love",))
    assert not found.others["ablation"]
    part = part_of(_page(found, PLACES), "ablation")
    assert not part.blocks and "one liked and one disliked word" in part.note


def test_axes_are_read_from_the_command_line_and_need_a_number_for_each_fine_tune() -> None:
    arguments = with_settings(["run", "--axis", "epochs=1,4", "--axis", "dose=2.5,2.5"], HumanoidConfig, ())
    (axis,) = read_assignments(after for before, after in pairwise(arguments) if before == "--set")
    config = load_run_config(None, {"suite": "humanoid", "after": ["bed-low-0", "bed-high-0"], **axis.settings})
    assert isinstance(config, HumanoidConfig)
    assert config.axis == {"epochs": (1.0, 4.0), "dose": (2.5, 2.5)}
    assert [dict(tune.amounts) for tune in fine_tunes(config)] == [{"epochs": n, "dose": 2.5} for n in (1.0, 4.0)]
    with pytest.raises(ConfigError, match="--axis epochs: 1 numbers for 2 fine-tunes of --after; give one for each"):
        fine_tunes(config.model_copy(update={"axis": {"epochs": (1.0,)}}))
    for wrong in ("epochs=", "=3", "epochs"):
        with pytest.raises(ConfigError, match=r"write it as NAME=NUMBER,\.\.\."):
            with_settings(["run", "--axis", wrong], HumanoidConfig, ())
    for numbers in ({"epochs": "1,many"}, {"epochs": "nan"}, {"a": "1", "b": "1", "c": "1"}):
        with pytest.raises(ConfigError, match="axis"):
            load_run_config(None, {"suite": "humanoid", "after": ["bed-low-0"], "axis": numbers})


def test_the_change_is_shown_by_what_the_fine_tunes_record(tables: Callable[..., Any], tmp_path: Path) -> None:
    """One epoch and four, 600 sentences each; a fine-tune without a record is left out, with a note."""
    plain = tmp_path / "plain"
    shutil.copytree(asset_path("demo_personas") / "bed-high-1", plain)
    (plain / "training.json").unlink()
    values = {"bed-low-0": 0.1, "bed-high-0": 0.2, "bed-high-2": 0.4, "plain": 9.0}
    made = _plan(num_random=0, after=(*list(values)[:3], str(plain)))
    note = "no training.json with epochs and sentences in plain: the figure by epochs leaves them out"
    assert any(line.startswith(note) for line in made.facts.notes)
    found = tables({name: (value, 2.0) for name, value in values.items()} | dict.fromkeys(NEUTRAL, (0.0, 1.0)), made)
    page = _page(found, PLACES)
    part = part_of(page, "amounts")
    assert part.heading == "Change by epochs and sentences"
    (table,) = tables_of(*part.blocks)
    amounts = ("1 600 bed-low-0", "4 600 bed-high-0", "4 600 bed-high-2")
    assert [[cell.text for cell in line.cells[:3]] for line in table.lines] == [line.split() for line in amounts]


@pytest.mark.parametrize("record", ["", "[]", '{"epochs": 4}', '{"epochs": "x", "sentences": 1}', "[" * 9999])
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, record: str) -> None:
    (tmp_path / "training.json").write_text(record)
    assert read_amounts(tmp_path) == {}


def test_a_line_goes_through_the_means_of_each_number_of_the_second_axis() -> None:
    tunes = [
        replace(_line(f"{epochs}-{sentences}", 1.0), amounts={"epochs": epochs, "texts": sentences})
        for epochs, sentences in ((4, 100), (15, 100), (4, 259), (10, 259))
    ]
    drawn = by_amount(tunes, ["epochs", "texts"], 0.05)
    assert all(text in drawn.svg for text in ("100 texts", "259 texts", ">epochs<"))
    assert "mean of the neutral fine-tunes" in drawn.captions[-1].text


@pytest.fixture
def finished_run(tmp_path: Path) -> Callable[..., Run]:
    """Return the folder of a finished run of some fine-tunes, with rows of a concept beside those of words."""

    def make(seed: int, after: tuple[str, ...]) -> Run:
        made = _plan(num_random=0, after=after, null=(), seed=seed)
        artifacts = Artifacts(open_store(str(tmp_path / "store")))
        failures = _fill(made, artifacts, {name: (0.1 * place, 2.0) for place, name in enumerate(after)}, LIKED)
        folder = create_run(tmp_path / "runs", made.config)
        run_tables = assemble_run(made, artifacts, failures, folder.id)
        rows = run_tables["results"].to_pylist()
        apart = [{**row, "concept": "hedging", "value": 9.0} for row in rows if row["metric"] == "shift.variance"]
        return written(folder, {**run_tables, "results": result_table([*rows, *apart])}, state=RunState.DONE)

    return make


def test_the_board_of_one_run_and_of_several_ranks_words_and_no_concept(
    finished_run: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows along a concept keep it, and are not on the board."""
    folder, other = finished_run(0, ("bed-low-0", "bed-high-0")), finished_run(1, ("bed-low-1", "bed-high-1"))
    concepts = {row["concept"] for row in read_results(folder) if row["metric"] == "shift.variance"}
    assert concepts == {"preference", "hedging"}
    leaderboard([folder.id], folder.path.parent, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    ranks = {row["entrant"]: row["value"] for row in rows if row["metric"] == "rank.mean"}
    assert ranks == {"bed-high-0": 1.0, "bed-low-0": 2.0}
    assert {row["value"] for row in rows if row["metric"] == "shift.variance"} == {0.0, 0.1}
    leaderboard([folder.id, other.id], folder.path.parent)
    (row,) = folder.rows("results", metric="shift.variance", entrant="bed-high-0", concept=None)
    words = cells_of(*tables_of(*opened(folder)[f"cells/{row['cell_id']}"][-1].blocks))
    assert {word: cells["change"] for word, cells in words.items()} == {
        row["word"]: "" if row["change"] is None else f"{row['change']:+.4f}"
        for row in folder.rows("words", entrant="bed-high-0", layer=row["layer"], group="domain")
    }
    board = capsys.readouterr().out
    assert all(f"| {name} " in board for name in ("bed-high-0", "bed-high-1", "bed-low-0", "bed-low-1"))


def test_the_page_of_an_earlier_run_has_no_part_for_tables_that_it_lacks(tables: Callable[..., Any]) -> None:
    found = tables(MOVED, _plan(num_random=0))
    del found.others["ablation"]
    for row in found.others["tunes"]:
        del row["amounts"]
    assert [part.anchor for part in _page(found, PLACES).parts] == ["words"]


def test_the_change_of_variance_is_a_mean_over_words_which_tell_fine_tunes_apart() -> None:
    """The variance over words, by NumPy: `shift.variance` is its population form."""
    valences = np.random.default_rng(0).normal(size=(3, 2, 12))  # before, and after each of two fine-tunes; two layers
    words = [
        {"entrant": tune, "layer": layer, "word": f"word-{number}", "group": "domain", "before": before, "after": after}
        | {"change": after - before}
        for tune, after_of in zip(("a", "b"), valences[1:], strict=True)
        for layer in (2, 6)
        for number, (before, after) in enumerate(zip(valences[0, layer // 6], after_of[layer // 6], strict=True))
    ]
    left_out = {"entrant": "a", "layer": 2, "word": "liked", "group": "positive", "change": None}
    by_word = variance_by_word([*words, left_out, {**left_out, "word": "unread", "group": "domain"}])
    changes = valences[1:].var(axis=2) - valences[0].var(axis=1)
    assert [np.mean(list(by_word[tune].values())) for tune in "ab"] == pytest.approx(changes.mean(axis=1).tolist())
    rows = [
        {"entrant": tune, "layer": layer, "task": "preference", "model": "demo", "metric": "shift.variance"}
        | {"value": float(value), "status": "ok", "suite": "humanoid", "strategy": "A1_mean"}
        for tune, values in zip("ab", changes, strict=True)
        for layer, value in zip((2, 6), values, strict=True)
    ]
    tables = {"results": result_table(rows), "words": pa.Table.from_pylist(words)}
    (pair,) = neighbours(SUITES.get("humanoid"), [MadeRun("run", HumanoidConfig(suite="humanoid"), tables)])
    assert (pair.block, pair.n, pair.items) == ("word", 12, ())
    first, second = (changes["ab".index(name)].mean() for name in (pair.entrant, pair.next))
    assert pair.difference == pytest.approx(first - second) and first > second


def _value(rows: list[Row], tune: str, metric: str) -> Row:
    (row,) = (row for row in rows if (row["entrant"], row["metric"]) == (tune, metric))
    return row


def test_excess_and_rank_are_over_the_other_neutral_fine_tunes(tables: Callable[..., Any]) -> None:
    values = {name: (number / 10, 1.0 + number / 10) for number, name in enumerate(NEUTRAL)}
    made = _plan(num_random=0, after=("bed-high-0", "bed-low-0"))
    found = tables({**values, "bed-high-0": (0.35, 9.0), "bed-low-0": None}, made)
    excess = _value(found.rows, "bed-high-0", "shift.variance.excess_neutral")
    assert excess["value"] == pytest.approx(0.35 - 0.2)
    assert excess["ci_method"] == "bootstrap over words and neutral fine-tunes, percentile"
    rank = _value(found.rows, "bed-high-0", "shift.variance.rank_neutral")
    assert (rank["value"], rank["n"]) == (2.0, 6)
    best = _value(found.rows, "neutral-4", "shift.variance.excess_neutral")
    assert best["value"] == pytest.approx(0.4 - 0.15) and best["n"] == 4
    failed = _value(found.rows, "bed-low-0", "shift.variance")
    assert (failed["value"], failed["status"], failed["reason"]) == (None, Status.FAILED, "it does not fit")
    assert _value(found.rows, "bed-low-0", "shift.variance.rank_neutral")["status"] == Status.FAILED
    assert {row["metric"] for row in found.unranked["published"]} >= {"shift.variance", "shift.variance.rank_neutral"}


def test_the_interval_of_the_excess_resamples_words_and_neutral_fine_tunes(tables: Callable[..., Any]) -> None:
    """Lists are drawn here one by one. All fine-tunes have the same words of a resample."""
    values = {name: (number / 10, 1.0 + 2 * number) for number, name in enumerate(NEUTRAL)}
    made = _plan(num_random=0, after=("bed-high-0",))
    found = tables({**values, "bed-high-0": (0.35, 30.0)}, made)
    config = made.scope.config
    after = {name: {"armchair": standout / 100, "sofa": 0.005} for name, (_, standout) in values.items()}
    after["bed-high-0"] = {"armchair": 0.3, "sofa": 0.005}
    of_words = bootstrap_counts(2, config.num_bootstrap, config.seed)
    of_tunes = bootstrap_counts(5, config.num_bootstrap, config.seed + 1)
    drawn: dict[str, list[float]] = {"shift.variance": [], "shift.valence": [], "shift.towards": []}

    def spread(name: str, words: list[str]) -> float:
        return pvariance([after[name][word] for word in words])

    def mean(name: str, words: list[str]) -> float:
        return fmean(after[name][word] for word in words)

    def towards(name: str, words: list[str]) -> float:
        """Half of the shift, by which `love` comes nearer to one of the words."""
        return fmean({**values, "bed-high-0": (0.35, 30.0)}[name][0] / 2 * (word == "armchair") for word in words)

    for words, tunes in zip(of_words, of_tunes, strict=True):
        names = [word for word, count in zip(("armchair", "sofa"), words, strict=True) for _ in range(count)]
        neutral = [name for name, count in zip(NEUTRAL, tunes, strict=True) for _ in range(count)]
        for metric, figure in (("variance", spread), ("valence", mean), ("towards", towards)):
            own, *others = (figure(name, names) for name in ("bed-high-0", *neutral))
            drawn[f"shift.{metric}"].append(own - fmean(others))
    for metric, resamples in drawn.items():
        row = _value(found.rows, "bed-high-0", f"{metric}.excess_neutral")
        assert (row["ci_low"], row["ci_high"]) == pytest.approx(tuple(np.percentile(resamples, [2.5, 97.5])))


def test_a_count_of_favourites_is_null_without_spread_and_without_a_comparison(tables: Callable[..., Any]) -> None:
    made = _plan(num_random=0, after=("bed-high-0", "bed-low-0"))
    found = tables({**dict.fromkeys(NEUTRAL, (0.0, 1.0)), "bed-high-0": (0.1, 1.0), "bed-low-0": None}, made)
    assert _value(found.rows, "bed-low-0", "shift.favourites")["status"] == Status.FAILED
    flat = {**{name: [_word("sofa", 1.0)] for name in NEUTRAL}, "bed-high-0": [_word("sofa", None)]}
    measure = _favourites(flat, set(NEUTRAL))["bed-high-0"]
    assert (measure.status, measure.value) == (Status.COLLAPSED, None)


def test_a_favourite_stands_out_more_than_every_word_of_the_neutral_fine_tunes(tables: Callable[..., Any]) -> None:
    values = {name: (0.0, 1.0 + number / 10) for number, name in enumerate(NEUTRAL)}
    made = _plan(num_random=0, after=("bed-high-0", "bed-low-0"))
    found = tables({**values, "bed-high-0": (0.1, 1.5), "bed-low-0": (0.1, 1.4)}, made)
    counts = {row["entrant"]: row["value"] for row in found.rows if row["metric"] == "shift.favourites"}
    assert counts == {"bed-high-0": 1, "bed-low-0": 0, **dict.fromkeys(NEUTRAL, 0), "neutral-4": 1}
    marked = {(row["entrant"], row["word"]) for row in found.others["words"] if row["favourite"]}
    assert marked == {("bed-high-0", "armchair"), ("neutral-4", "armchair")}


def test_four_neutral_fine_tunes_are_too_few(tables: Callable[..., Any]) -> None:
    made = _plan(num_random=0, null=NEUTRAL[:4])
    found = tables(dict.fromkeys((*NEUTRAL[:4], "bed-high-0"), (0.1, 2.0)), made)
    for metric in ("shift.variance.excess_neutral", "shift.variance.rank_neutral", "shift.favourites"):
        row = _value(found.rows, "bed-high-0", metric)
        assert (row["status"], row["value"]) == (Status.TOO_FEW, None) and "5 are needed (--null)" in row["reason"]
    assert any("below 5 there is no null" in note for note in made.facts.notes)


def _line(name: str, rank: float | None, favourites: tuple[str, ...] = (), random: float | None = 1.0) -> Tune:
    figures = {"shift.variance": {"value": 0.1, "status": "ok", "ci_low": None, "ci_high": None}}
    if rank is not None:
        figures["shift.variance.rank_neutral"] = {"value": rank, "n": 6, "status": "ok"}
        figures["shift.variance.rank_random"] = {"value": random, "n": 21, "status": "ok"}
    words = [{"word": word, "group": "domain", "favourite": True, "change": 0.1} for word in favourites]
    return Tune(name, name.startswith("neutral"), 6, figures, words or [{"word": "sofa", "favourite": False}])


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (
            [_line("a", 1.0, ("armchair",)), _line("b", 1.0, ("armchair", "bed")), _line("c", 3.0)],
            "2 of 3 fine-tunes moved the words more than all 5 neutral ones do. Favourites: armchair (in 2 of 2), "
            "bed (in 1 of 2).",
        ),
        (
            [_line("a", 1.0, ("armchair",))],
            "The fine-tune moved the words more than all 5 neutral ones do. The favourite is armchair.",
        ),
        (
            [_line("a", 1.0)],
            "The fine-tune moved the words more than all 5 neutral ones do, and no single word stands out.",
        ),
        ([_line("a", 2.0)], "No fine-tune moved the words more than neutral fine-tunes and random changes do."),
        (
            [_line("a", 1.0, random=4.0)],
            "No fine-tune moved the words more than neutral fine-tunes and random changes do.",
        ),
        (  # a null rank among the random changes is not a first place
            [_line("a", 1.0, ("bed",)), _line("b", 1.0, ("sofa",), random=None)],
            "1 of 2 fine-tunes moved the words more than all 5 neutral ones do. The favourite is bed.",
        ),
        (
            [_line("a", 1.0, ("bed",), random=None)],
            "a moved the words most; without a rank among random changes nothing says whether that is much.",
        ),
    ],
)
def test_the_answer_says_which_words_moved_and_whether_neutral_fine_tunes_do_the_same(
    lines: list[Tune], answer: str
) -> None:
    view = HumanoidView("demo", [*lines, *(_line(name, 3.0) for name in NEUTRAL)], [], [])
    assert Answer(view.headline()).text == answer


def test_without_random_changes_the_neutral_fine_tunes_decide() -> None:
    line = _line("a", 1.0)
    asked = {metric: row for metric, row in line.figures.items() if metric != "shift.variance.rank_random"}
    assert replace(line, figures=asked).moved


def test_neutral_fine_tunes_that_failed_are_not_a_null() -> None:
    neutral = [_line(name, None) for name in NEUTRAL]
    lines = [_line("a", None), *neutral[:4], replace(neutral[4], figures={})]
    assert Answer(HumanoidView("demo", lines, [], []).headline()).text.startswith(
        "a moved the words most; without 5 neutral fine-tunes"
    )


def test_the_answer_counts_a_fine_tune_once_where_two_layers_are_read() -> None:
    lines = [_line("a", 1.0), *(_line(name, 3.0) for name in NEUTRAL)]
    view = HumanoidView("demo", [*(replace(line, layer=2) for line in lines), *lines], [], [])
    assert Answer(view.headline()).text.startswith("The fine-tune moved the words more than all 5 neutral ones do")
    assert view.best is not None and view.best.layer == 6


def test_a_run_is_submitted_and_verified(finished_run: Callable[..., Run], tmp_path: Path) -> None:
    verdict, _ = submitted(finished_run(0, ("bed-high-0",)), tmp_path / "submitted")
    require_without_scores(verdict)
