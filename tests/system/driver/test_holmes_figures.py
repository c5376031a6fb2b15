"""Figures of the paper over two small models that are read and probed: each is computed again with other code."""

import json
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from driver.tests.page_reader import cells_of, part_of, rendered, tables_of
from driver.tests.run_folders import assembled
from scipy import stats

from poolbench.config import resolve_model
from poolbench.contracts import Row
from poolbench.errors import ConfigError, InputError
from poolbench.model_folders.bases import find_base
from poolbench.storage import Artifacts, open_store
from poolbench.worker.taskio import TaskIO
from poolbench_driver.cli.runs import leaderboard
from poolbench_driver.contract.page import Page, Table
from poolbench_driver.corpora.sources import chosen_sets
from poolbench_driver.models import describe
from poolbench_driver.records import Run
from poolbench_driver.report.making import page_of
from poolbench_driver.series import SeriesBoard
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.plan import HolmesScope, plan, strategies_of
from poolbench_driver.suites.holmes.thinning import thinned
from poolbench_extractor.service import create as extractor
from poolbench_prober.service import create as prober

SETS = ("planted-pos", "planted-role", "planted-number", "planted-verb-form", "planted-relation", "planted-coreference")
SCORE, DEVIATION = "holmes.score", "standard deviation over seeds"


class Runs(NamedTuple):
    """Finished runs of two models, in one folder."""

    demo: Run
    minilm: Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("holmes")
    settings: dict[str, Any] = {"sets": SETS, "strategies": ("A1_mean", "P1_last_token"), "flash": 0.1}
    settings |= {"layers": (0.5, "final"), "flash_eval": 60, "protocol": "published"}
    models = "demo", str(find_base("minilm").folder)
    return Runs(*(finished(HolmesConfig(suite="holmes", model=name, **settings), folder) for name in models))


def finished(config: HolmesConfig, folder: Path) -> Run:
    """Return the folder of a run whose tasks the handlers of extractor and prober have done, one after the other."""
    catalogue, sets = chosen_sets(config.sets, config.corpus.source)
    data, _ = catalogue.read_all(sets, config.seed)
    data = {name: thinned(of_set, config) for name, of_set in data.items()}
    model, by_id = describe(resolve_model(config.model), None), {each.id: each for each in sets}
    made = plan(HolmesScope(config, model, tuple(strategies_of(config)), by_id, data, ()))
    artifacts = Artifacts(open_store(str(folder / "store")))
    services: dict[str, Any] = {"extractor": extractor(), "prober": prober()}
    for key, local in made.local.items():
        artifacts.write_table(key, local.build())
    for task in made.tasks.values():
        services[task.service].handlers[task.kind](task, TaskIO(task, artifacts))
    return assembled(SimpleNamespace(plan=made, artifacts=artifacts), folder / "runs")


def scores_of(*folders: Run) -> dict[str, dict[str, Any]]:
    """Return the score of each entrant by set."""
    scores: dict[str, dict[str, Any]] = defaultdict(dict)
    for folder in folders:
        for row in folder.rows("results", metric=SCORE):
            scores[row["entrant"]][row["task"]] = row["value"]
    return scores


def rates_of(scores: dict[str, dict[str, Any]], sets: list[str]) -> dict[str, float]:
    """Return the percentage of (set, other entrant) pairs that each entrant wins, counted in loops."""
    rates = {}
    for name, own in scores.items():
        others = [other for other in scores if other != name]
        pairs = [(own[on], scores[other][on]) for other in others for on in sets]
        won = [1.0 if one > two else 0.5 * (one == two) for one, two in pairs if None not in (one, two)]
        rates[name] = 100 * fmean(won)
    return rates


def rates_by_type(*folders: Run) -> dict[str, dict[str, float]]:
    sets = {row["set"]: row["type"] for row in folders[0].rows("sets")}
    kinds = {"overall": list(sets)} | {
        kind: [name for name in sets if sets[name] == kind] for kind in ("morphology", "syntax", "discourse")
    }
    return {kind: rates_of(scores_of(*folders), of_kind) for kind, of_kind in kinds.items()}


def means(rows: list[Row]) -> dict[str, float]:
    """Return the mean of the values by set, without nulls."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["value"] is not None:
            values[row["task"]].append(row["value"])
    return {name: fmean(of_set) for name, of_set in values.items()}


def numbers(table: Table) -> dict[tuple[str, ...], list[Any]]:
    """Return the cells of each line behind its texts, by these."""
    return {
        tuple(cell.text for cell in line.cells if cell.value is None): [
            cell for cell in line.cells if cell.value is not None
        ]
        for line in table.lines
    }


@pytest.fixture(scope="module")
def page(runs: Runs) -> Page:
    return page_of(runs.demo)


def test_scores_stand_against_deviation_compression_and_selectivity(runs: Runs, page: Page) -> None:
    """By SciPy, over the sets; the deviation is that of the five seeds of the published protocol."""
    (table,) = tables_of(*part_of(page, "reliability").blocks)
    shown = {line.cells[0].text: line.cells for line in table.lines}
    published, values = runs.demo.rows("published", metric=SCORE), defaultdict[tuple[str, str], list[float]](list)
    for row in runs.demo.rows("seeds", protocol="published"):
        values[row["entrant"], row["set"]].append(row["value"])
    assert {len(of_seeds) for of_seeds in values.values()} == {5}
    deviations = [{**row, "value": stdev(values[row["entrant"], row["task"]])} for row in published]
    results = runs.demo.rows("results", metric=SCORE)
    for name, rows, scores in (
        (DEVIATION, deviations, published),
        ("compression", runs.demo.rows("results", metric="probe.compression"), results),
        ("selectivity", runs.demo.rows("results", metric="probe.selectivity"), results),
    ):
        score = {(row["entrant"], row["task"]): row["value"] for row in scores}
        measured = [row for row in rows if None not in (row["value"], score[row["entrant"], row["task"]])]
        x = means(measured)
        y = means([{**row, "value": score[row["entrant"], row["task"]]} for row in measured])
        expected = stats.spearmanr([x[on] for on in SETS], [y[on] for on in SETS]).statistic
        _, num_sets, cell, lacks = shown[name]
        assert cell.value == pytest.approx(expected) and cell.interval
        assert (num_sets.text, lacks.text) == (str(len(SETS)), "")
    assert len([block for block in part_of(page, "reliability").blocks if block.kind == "picture"]) == 3


def test_means_by_type_and_the_correlation_of_types(runs: Runs, page: Page) -> None:
    by_type, correlations = tables_of(*part_of(page, "types").blocks)
    sets = {row["set"]: row for row in runs.demo.rows("sets")}
    score = means(runs.demo.rows("results", metric=SCORE))
    selectivity = means(runs.demo.rows("results", metric="probe.selectivity"))
    assert [line.cells[0].text for line in by_type.lines] == ["overall", "morphology", "syntax", "discourse"]
    for (
        kind,
        *_,
    ) in ((line.cells[0].text,) for line in by_type.lines):
        names = [name for name in SETS if kind in ("overall", sets[name]["type"])]
        count, *cells = numbers(by_type)[kind,]
        assert count.value == len(names)
        found = [cell.value for cell in cells]
        discriminability = fmean(sets[name]["discriminability"] for name in names)
        expected = [fmean(score[name] for name in names), fmean(selectivity[name] for name in names), discriminability]
        assert found == pytest.approx(expected)
    rates = rates_by_type(runs.demo)
    entrants = list(rates["overall"])
    assert list(numbers(correlations)) == list(combinations(rates, 2))
    for (one, other), (cell,) in numbers(correlations).items():
        sides = ([rates[kind][name] for name in entrants] for kind in (one, other))
        assert cell.value == pytest.approx(stats.kendalltau(*sides).statistic)


def test_accuracy_on_frequent_words(runs: Runs, page: Page) -> None:
    (table,) = tables_of(*part_of(page, "words").blocks)
    predictions = [row for row in runs.demo.rows("predictions") if row["word"] is not None]
    (entrant,) = {row["entrant"] for row in predictions if row["entrant"].endswith("A1_mean final")}
    own = [row for row in predictions if row["entrant"] == entrant]
    assert {row["set"] for row in own} == {"planted-pos", "planted-role", "planted-verb-form"}
    counts = Counter(row["word"] for row in own)
    shown = cells_of(table)
    assert len(shown) == 22
    most = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:20]]
    assert list(shown)[:20] == most
    groups = {word: [word] for word in most} | {"the 20 most frequent words": most}
    groups["all other words"] = [word for word in counts if word not in most]
    for name, words in groups.items():
        right = [row["truth"] == row["predicted"] for row in own if row["word"] in words]
        assert (shown[name]["instances"], shown[name][entrant]) == (str(len(right)), f"{fmean(right):.3f}")


def test_a_board_of_two_models_compares_architecture_size_and_tuning(runs: Runs) -> None:
    """A decoder and an encoder. The first run that is named is the base."""
    board = SeriesBoard.of([runs.demo, runs.minilm]).joined
    assert board is not None
    rendered(board)
    by_architecture, tuned = tables_of(*part_of(board, "models").blocks)
    rates = rates_by_type(runs.demo, runs.minilm)
    of_model = {"decoder": "demo ", "encoder": f"{runs.minilm.config.model} "}
    for (kind,), (count, *cells) in numbers(by_architecture).items():
        expected = [
            fmean(rate for name, rate in of_kind.items() if name.startswith(of_model[kind]))
            for of_kind in rates.values()
        ]
        assert [cell.value for cell in cells] == pytest.approx(expected) and count.value == 1
    found = numbers(tuned)
    assert {key[0] for key in found} == {runs.minilm.config.model} and len(found) == 4
    for (model, reading), cells in found.items():
        expected = [of_kind[f"{model} {reading}"] - of_kind[f"demo {reading}"] for of_kind in rates.values()]
        assert [cell.value for cell in cells] == pytest.approx(expected)
    scores, (sets,) = scores_of(runs.demo, runs.minilm), tables_of(*part_of(board, "sets").blocks)
    for name, line in cells_of(sets).items():
        sides = zip(*((scores[entrant][name], rate) for entrant, rate in rates["overall"].items()), strict=True)
        assert line["discriminability"] == f"{stats.kendalltau(*sides).statistic:.2f}"
    columns = cells_of(board.board)["demo A1_mean final"]
    assert (columns["architecture"], columns["parameters"]) == ("decoder", "5,795,072")
    (picture,) = (block for block in part_of(board, "models").blocks if block.kind == "picture")
    drawn = picture.spec["layer"][0]["data"]["values"]
    assert {row["x"] for row in drawn} == {5.79507, 22.7137}
    assert {row["y"] for row in drawn} == {float(f"{rate:.6g}") for rate in rates["overall"].values()}


def test_a_board_stands_beside_other_benchmarks(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of runs, whose models or entrants the file names; and of a recorded table."""
    file = tmp_path / "others.csv"
    rates = rates_by_type(runs.demo, runs.minilm)
    values = dict(zip(rates["overall"], (3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0, 3.5), strict=True))
    file.write_text("model,exam,quiz\n" + "".join(f"{name},{value},{-value}\n" for name, value in values.items()))
    names = [run.id for run in runs]
    leaderboard(names, output=runs.demo.path.parent, beside=file, as_json=True)
    (table,) = json.loads(capsys.readouterr().out)["blocks"]
    for line, (kind, of_kind) in zip(table["lines"], rates.items(), strict=True):
        name, exam, quiz = line["cells"]
        expected = stats.kendalltau(list(of_kind.values()), list(values.values())).statistic
        assert (name["text"], exam["value"]) == (kind, pytest.approx(expected))
        assert quiz["value"] == pytest.approx(-expected)
    file.write_text("model,exam\ndemo,1\nother,2\n")
    with pytest.raises(InputError, match="has 1 models of the board, of 2 lines; 3 are needed, each once, such as"):
        leaderboard(names, output=runs.demo.path.parent, beside=file)
    with pytest.raises(ConfigError, match="leave out --power, --join or the other"):
        leaderboard(names, output=runs.demo.path.parent, beside=file, power=True)
    scores = scores_of(runs.demo)
    recorded = tmp_path / "recorded.csv"
    lines = [[name, *(f"{scores[entrant][name]}" for entrant in scores)] for name in SETS]
    recorded.write_text("\n".join(",".join(line) for line in [["probing dataset", *scores], *lines]))
    file.write_text("model,exam\n" + "".join(f"{name},{place}\n" for place, name in enumerate(scores)))
    leaderboard(table=recorded, suite="holmes", beside=file)
    expected = stats.kendalltau(list(rates_of(scores, list(SETS)).values()), range(len(scores))).statistic
    assert f"| overall | {expected:.2f} |" in capsys.readouterr().out


def test_what_a_run_lacks_is_said_with_the_option_that_keeps_it(runs: Runs, tmp_path: Path) -> None:
    folder = Run(runs.demo.path, runs.demo.id)
    tables = {name: folder.tables[name] for name in ("results", "sets", "entrants", "predictions", "seeds")}
    tables["predictions"] = tables["predictions"].drop_columns(["word"])
    bare = SimpleNamespace(tables=tables, rows=lambda name, **of: [
        row for row in (tables[name].to_pylist() if name in tables else ())
        if all(row[column] == value for column, value in of.items())
    ], config=folder.config, id=folder.id)  # fmt: skip
    from poolbench_driver.suites.holmes.figures import figures
    from poolbench_driver.suites.holmes.view import view_of

    parts = {part.anchor: part for part in figures(view_of(bare))}  # type: ignore[arg-type]
    (reliability,) = tables_of(*parts["reliability"].blocks)
    assert "`--protocol published` trains five seeds" in cells_of(reliability)[DEVIATION]["lacks"]
    (words,) = parts["words"].blocks
    assert words.kind == "prose" and "run it with such sets" in words.text
