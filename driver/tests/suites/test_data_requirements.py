"""The suite data requirements: settings, plan, vectors of files, comparisons by size, rows, page, and the promise."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driver.tests.page_reader import cells_of, opened, part_of, rendered, tables_of, texts_of
from driver.tests.run_folders import assembled
from driver.tests.submitted import require_without_scores, submitted
from typer.testing import CliRunner

from poolbench.config import asset_path, resolve_model
from poolbench.contracts.tables import PILOT_ANSWERS
from poolbench.errors import ConfigError, CorpusError, InputError, UnknownNameError
from poolbench.steps import prober as steps
from poolbench.steps.extractor import EXTRACT, ExtractParams
from poolbench.storage import Artifacts, open_store
from poolbench_driver.assemble import assemble
from poolbench_driver.cli import app
from poolbench_driver.cli.runs import leaderboard
from poolbench_driver.cli.suite_options import with_settings
from poolbench_driver.config import read_assignments
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.models import ModelInfo
from poolbench_driver.records import Run
from poolbench_driver.report.making import page_of
from poolbench_driver.statistics.mcnemar import mcnemar_power
from poolbench_driver.statistics.pilots import sign_share
from poolbench_driver.statistics.training_size import required_training_size
from poolbench_driver.suites.data_requirements.config import Configuration, DataRequirementsConfig, display_name
from poolbench_driver.suites.data_requirements.plan import DataPlan, check, plan, resolve
from poolbench_driver.suites.data_requirements.sets import read_sets, sizes_of
from poolbench_driver.suites.data_requirements.size_comparison import SizeComparison, compare_sizes

SUITE = "data-requirements"
MODEL = ModelInfo(resolve_model("demo"), 6, 256)


def configured(*options: str, **settings: Any) -> DataRequirementsConfig:
    """The configuration of a command with these options."""
    arguments = with_settings(options, DataRequirementsConfig, ())
    assignments = read_assignments(arguments[1::2])
    config = load_run_config(None, {"suite": SUITE, **settings}, assignments)
    assert isinstance(config, DataRequirementsConfig)
    return config


def planned(*options: str) -> DataPlan:
    return plan(resolve(configured(*options), None, MODEL))  # type: ignore[arg-type]  # no other model is asked for


# Settings


def test_configurations_are_keys_and_values() -> None:
    config = configured("--compare", "layer=0.5, noise=.3", "--with", "hidden=20", "--with=control=word_order,layer=1")
    assert config.compare == Configuration(layer=0.5, noise=0.3)
    assert config.against == (Configuration(hidden=20), Configuration(control="word_order", layer=1))
    assert configured("--set", "against=[{hidden: 20}]").against == (Configuration(hidden=20),)
    assert configured("--sizes", "60,120", "--seeds", "3", "--seeds", "5").seeds == (3, 5)
    assert configured("--vectors", "a=x=y.npz", "--with", "vectors=a").vectors == {"a": "x=y.npz"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--with", "noise"], "write key=value"),
        (["--with", "noise=1,noise=2"], "noise is given twice"),
        (["--with", "nois=1"], "nois"),
        (["--with", "noise=-1"], "against.0.noise"),
        (["--with", "layer=final"], "A1_mean final is named twice"),
        (["--with", "hidden=20", "--with", "hidden=20"], "named twice"),
        (["--seeds", "0,0"], r"seeds \[0, 0\]: name each once"),
        (["--sizes", "60,60"], "name each once"),
        (["--sizes", "11"], "6 folds need 12 examples at least"),
        (["--folds", "2"], "three at least"),
        (["--with", "vectors=a"], "name its file with --vectors a=FILE"),
        (["--vectors", "a=f.npz"], "no side of a comparison reads it"),
        (["--vectors", "a=f.npz", "--with", "vectors=a,layer=0"], "used as they are; leave out layer"),
        (["--vectors", "f.npz"], "write it as NAME=FILE"),
        (["--with", "adapter=x,control=random_weights"], "leave one out"),
        (
            ["--with", "adapter=x/a", "--with", "adapter=y/a"],
            "adapter a, A1_mean final is named twice, or two",
        ),
        (["--set", "against=[]"], "name what the first configuration is compared with"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configured(*options)
    assert "Value error" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("", "control=word_order", "word_order"),
        ("", "hidden=20", "MLP 20"),
        ("hidden=20", "", "logistic regression"),
        ("noise=1", "", "no noise"),
        ("", "layer=embedding", "A1_mean static words"),
        ("", "vectors=glove", "vectors glove"),
        ("vectors=glove", "", "A1_mean final"),
        ("model=x", "", "demo"),
        ("", "model=x,adapter=a/b/,label_noise=.1", "x, adapter b, label noise 0.1"),
    ],
)
def test_the_name_of_a_comparison_says_what_differs(first: str, second: str, expected: str) -> None:
    columns = [Configuration.model_validate(text).columns("demo") for text in (first, second)]
    assert display_name(columns[1], "demo", columns[0]) == expected


# Plan


def test_one_reading_serves_all_sides_that_share_it() -> None:
    made = planned("--sets", "planted-role,planted-pos", "--with", "hidden=20", "--with", "noise=1")
    reads = [task for task in made.tasks.values() if task.kind == EXTRACT.kind]
    pilots = [task for task in made.tasks.values() if task.kind == steps.PILOT.kind]
    assert len(reads) == 1 and len(pilots) == 3 * 2 == len(made.answers)
    params = {steps.PILOT.params_of(task).model_dump_json() for task in pilots}
    assert len(params) == 3 * 2  # sizes differ by set


def test_each_control_model_and_layer_is_read_and_a_key_depends_on_no_other_side(tmp_path: Path) -> None:
    alone = planned("--sets", "planted-role", "--with", "control=word_order")
    made = planned(
        "--sets", "planted-role,planted-pos", "--with", "control=word_order", "--with", "control=random_weights",
        "--with", "layer=embedding", "--with", "strategy=P1_last_token",
    )  # fmt: skip
    assert {alone.answers[number, "planted-role"] for number in (0, 1)} <= set(made.answers.values())
    reads = [EXTRACT.params_of(task) for task in made.tasks.values() if task.kind == EXTRACT.kind]
    assert all(isinstance(params, ExtractParams) for params in reads)
    changes = [params.change for params in reads]
    assert len(reads) == 3 and sum(change is not None for change in changes) == 1
    read = [task.inputs["passages"] for task in made.tasks.values() if task.kind == EXTRACT.kind]
    texts = [set(made.local[key].build()["text"].to_pylist()) for key in read]
    assert sum(other != texts[0] for other in texts) == 1  # words in another order


def test_one_fold_reads_and_splits_a_set_as_the_suite_holmes_does() -> None:
    """So that `plan-data` of two Holmes runs and a run of this suite compare the same answers."""
    made = planned("--sets", "planted-relation", "--folds", "1", "--seeds", "0", "--with", "strategy=P1_last_token")
    settings = {"sets": ["planted-relation"], "strategies": ["A1_mean", "P1_last_token"], "layers": ["final"]}
    suite = SUITES.get("holmes").load()
    other = suite.plan(suite.resolve(load_run_config(None, {"suite": "holmes", **settings}), None, MODEL))

    def of(plan: Any, kind: str) -> list[Any]:
        return [task for task in plan.tasks.values() if task.kind == kind]

    def splits(plan: Any, task: Any) -> dict[str, tuple[str, str]]:
        rows = plan.local[task.inputs["instances"]].build().to_pylist()
        return {row["instance_id"]: (row["split"], row["label"]) for row in rows}

    (pilot, _), (task,) = of(made, steps.PILOT.kind), of(other, steps.TASK.kind)
    assert splits(made, pilot) == splits(other, task)
    vectors = {key for read in of(made, EXTRACT.kind) for key in read.outputs.values()}
    assert vectors == {key for read in of(other, EXTRACT.kind) for key in read.outputs.values()}
    assert steps.PILOT.params_of(pilot).c_values == steps.TASK.params_of(task).c_values


def test_a_fine_tune_is_its_content_wherever_its_folder_lies(tmp_path: Path) -> None:
    rows, keys = [], []
    for place in ("here", "there"):
        folder = tmp_path / place / "tuned"
        shutil.copytree(asset_path("demo_personas") / "bed-high-0", folder)
        made = planned("--sets", "planted-role", "--with", f"adapter={folder}")
        keys.append(made.answers)
        tables = assemble(made, Artifacts(open_store(str(tmp_path / f"store-{place}"))), {}, "run")
        rows.append([row["cell_id"] for row in tables["results"].to_pylist()])
        sides = tables["comparisons"].to_pylist()
        assert (
            str(tmp_path) not in f"{sides} {tables['results'].to_pylist()}" and sides[0]["entrant"] == "adapter tuned"
        )
    assert keys[0] == keys[1] and rows[0] == rows[1]


def test_sizes_are_all_examples_and_halves_of_them() -> None:
    assert sizes_of(configured(), 300) == [75, 150, 300]
    assert sizes_of(configured(), 20_000) == [2500, 5000, 10_000, 20_000]
    assert sizes_of(configured(), 40) == [40]
    assert sizes_of(configured("--sizes", "90,30"), 300) == [30, 90]


def test_sizes_above_a_set_and_sets_without_labels_are_refused() -> None:
    with pytest.raises(ConfigError, match="sizes 500: planted-role has 240 examples; at most as many"):
        planned("--sets", "planted-role", "--sizes", "100,500")
    with pytest.raises(CorpusError, match="planted-depth: asks for real values, which are neither right nor wrong"):
        planned("--sets", "planted-depth")
    notes = resolve(configured("--sets", "planted-depth,planted-role"), None, MODEL).notes  # type: ignore[arg-type]
    assert any("planted-depth" in note for note in notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sets", "planted-rol"], "did you mean planted-role"),
        (["--with", "strategy=A1_men"], "A1_mean"),
        (["--with", "adapter=nowhere"], "folder of a fine-tune 'nowhere'"),
        (["--with", "strategy=S4_sif"], "reads token counts"),
    ],
)
def test_names_are_checked_before_a_cluster_is_asked(options: list[str], message: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        check(configured(*options))


def test_a_concept_is_a_set_whose_documents_and_pairs_stay_whole() -> None:
    data, _ = read_sets(configured("--sets", "hedging"))
    rows = data["hedging"].instances.to_pylist()
    assert {row["label"] for row in rows} == {"with", "without"} and len(rows) == 400
    assert 1 < len({row["group"] for row in rows}) < 400
    made = planned("--sets", "hedging", "--with", "hidden=4")
    assert set(made.scope.sizes) == {"hedging"}


# Vectors of files


def file_of(path: Path, ids: list[str], matrix: np.ndarray) -> Path:
    if path.suffix == ".npz":
        np.savez(path, ids=np.array(ids), vectors=matrix)
    else:
        pq.write_table(pa.table({"id": ids, "vector": pa.array(matrix.tolist(), pa.list_(pa.float32()))}), path)
    return path


def examples(name: str) -> list[str]:
    data, _ = read_sets(configured("--sets", name))
    return list(data[name].instances["instance_id"].to_pylist())


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_vectors_of_a_file_stand_beside_a_model(tmp_path: Path, ending: str) -> None:
    ids = examples("planted-role")
    matrix = np.random.default_rng(0).normal(size=(len(ids) + 1, 5)).astype(np.float32)
    path = file_of(tmp_path / f"v{ending}", [*reversed(ids), "another"], matrix)
    made = planned("--sets", "planted-role", "--vectors", f"mine={path}", "--with", "vectors=mine")
    (task,) = (task for task in made.tasks.values() if task.outputs.get("answers/file/0"))
    stored = made.local[task.inputs["vectors/file/0/0"]].build()
    assert stored["passage_id"].to_pylist() == ids
    np.testing.assert_array_equal(np.stack(stored["vector"].to_numpy(zero_copy_only=False)), matrix[:-1][::-1])
    instances = made.local[task.inputs["instances"]].build().to_pylist()
    assert [row["first"] for row in instances] == [[name] for name in ids]
    other = file_of(tmp_path / f"w{ending}", [*reversed(ids), "another"], matrix + 1)
    again = planned("--sets", "planted-role", "--vectors", f"mine={other}", "--with", "vectors=mine")
    assert again.answers[1, "planted-role"] != made.answers[1, "planted-role"]
    assert again.answers[0, "planted-role"] == made.answers[0, "planted-role"]


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_files_of_vectors_that_cannot_be_used(tmp_path: Path, ending: str) -> None:
    ids = examples("planted-role")
    matrix = np.ones((len(ids), 3), dtype=np.float32)
    path = tmp_path / f"v{ending}"

    def refused(message: str) -> None:
        with pytest.raises(InputError, match=message):
            planned("--sets", "planted-role", "--vectors", f"mine={path}", "--with", "vectors=mine")

    refused("is not")  # there is no file
    file_of(path, ids[1:], matrix[1:])
    refused("1 of 240 examples of planted-role have no vector, such as 'planted-role/")
    file_of(path, [*ids[:-1], ids[0]], matrix)
    refused("comes twice")
    matrix[3, 1] = np.nan
    file_of(path, ids, matrix)
    refused("1 vector holds NaN or infinity, such as that of")
    path.write_bytes(b"PK or PAR1, but nothing of both")
    refused("is not")
    if ending == ".parquet":
        pq.write_table(pa.table({"id": ["a", "b"], "vector": [[1.0], [1.0, 2.0]]}), path)
        refused("several lengths")


def test_examples_are_written_by_id(tmp_path: Path) -> None:
    output = tmp_path / "sets" / "examples.jsonl"
    done = CliRunner().invoke(app, ["corpus", "examples", "planted-role,planted-agent", "--output", str(output)])
    assert done.exit_code == 0 and "480 examples of 2 sets" in done.output
    rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [row["id"] for row in rows[:240]] == examples("planted-role")
    pair = rows[-1]
    (start, end) = pair["second_spans"][0]
    assert pair["second_text"][start:end].strip() and pair["label"] in ("agent first", "agent second")


# Comparisons


def answers_of(
    rights: dict[int, dict[int, list[list[bool | None]]]],
    status: str | None = None,
    width: int = 8,
    ids: Sequence[str] = (),
) -> pa.Table:
    """PILOT_ANSWERS from rights by size, seed and fold, of examples with these ids."""
    rows = [
        {
            "seed": seed,
            "size": size,
            "fold": fold,
            "num_train": 4 * len(fold_rights),
            "num_dev": len(fold_rights),
            "instance_id": ids[fold * len(fold_rights) + number] if ids else f"i{fold}/{number}",
            "right": right,
            "status": status if right is None else None,
            "reason": "no vector" if right is None else None,
        }
        for size, by_seed in rights.items()
        for seed, folds in by_seed.items()
        for fold, fold_rights in enumerate(folds)
        for number, right in enumerate(fold_rights)
    ]
    return pa.Table.from_pylist(rows, PILOT_ANSWERS).replace_schema_metadata({"width": str(width), "classes": "2"})


def alone(answers: pa.Table) -> dict[str, str]:
    """Return groups of one example each."""
    return {name: name for name in answers["instance_id"].to_pylist()}


def fold(both: int, first: int, second: int, neither: int) -> tuple[list[bool], list[bool]]:
    """Rights of both sides in one fold, from numbers of examples."""
    pairs = [(True, True)] * both + [(True, False)] * first + [(False, True)] * second + [(False, False)] * neither
    return [one for one, _ in pairs], [other for _, other in pairs]


def test_a_comparison_by_hand() -> None:
    """Two seeds of two folds of 10: only the second is right in 3 + 2 and 2 + 2 of 20, only the first in 1 + 0, 0."""
    folds = {0: [fold(5, 1, 3, 1), fold(6, 0, 2, 2)], 1: [fold(6, 0, 2, 2), fold(7, 0, 2, 1)]}
    sides = [answers_of({60: {s: [f[side] for f in folds[s]] for s in folds}}) for side in (0, 1)]
    (compared,) = compare_sizes(*sides, alone(sides[0]), 0.05).values()
    assert isinstance(compared, SizeComparison)
    shares = compared.comparison.shares
    assert shares == {"0": (5 / 20, 1 / 20), "1": (4 / 20, 0.0)}
    assert compared.comparison.effect == pytest.approx(0.2)
    assert compared.counts == (40, 10, 10)
    assert compared.accuracies == pytest.approx((25 / 40, 33 / 40))
    powers = [mcnemar_power(*pair, 10).power for pair in shares.values()]
    assert compared.power == pytest.approx(np.mean(powers))
    differences = np.array([0.2, 0.2, 0.2, 0.2])
    assert compared.comparison.interval == pytest.approx((differences.mean(),) * 2)


def test_a_seed_that_contradicts_the_mean_has_neither_power_nor_errors() -> None:
    """Of 10 examples, the second alone is right in 6 and 0 of the first seed, and in 1 and 2 of the other."""
    folds = {0: [fold(4, 0, 6, 0)], 1: [fold(7, 2, 1, 0)]}
    sides = [answers_of({60: {s: [f[side] for f in folds[s]] for s in folds}}) for side in (0, 1)]
    (compared,) = compare_sizes(*sides, alone(sides[0]), 0.05).values()
    assert isinstance(compared, SizeComparison) and compared.errors is not None
    expected = mcnemar_power(0.6, 0.0, 10)
    assert (compared.power, compared.errors.type_m) == pytest.approx((expected.power / 2, expected.type_m))


def test_examples_that_one_side_did_not_answer_are_left_out_of_both() -> None:
    first = answers_of({60: {0: [[True, True, None, False], [True] * 4]}}, "failed")
    second = answers_of({60: {0: [[False, None, True, False], [True] * 4]}}, "failed")
    (compared,) = compare_sizes(first, second, alone(first), 0.05).values()
    assert isinstance(compared, SizeComparison)
    assert compared.comparison.shares == {"0": (0.0, 1 / 6)} and compared.counts[2] == 3


def test_a_size_with_a_fold_that_nobody_answered_has_the_reason() -> None:
    first = answers_of({60: {0: [[None, None], [True, True]]}, 120: {0: [[True, False]] * 2}}, "one_class")
    second = answers_of({60: {0: [[True, True], [True, True]]}, 120: {0: [[True, True]] * 2}})
    compared = compare_sizes(first, second, alone(first), 0.05)
    assert str(compared[60]) == "seed 0, fold 0: no vector" and compared[60].status == "one_class"  # type: ignore[union-attr]
    assert isinstance(compared[120], SizeComparison)


# Rows and page


def drawn(
    seed: int, sizes: tuple[int, ...], rates: tuple[float, float], of_set: str = "planted-role"
) -> tuple[pa.Table, pa.Table]:
    """Answers of two sides in six folds under three seeds, right as often as the rates say."""
    rng = np.random.default_rng(seed)
    rights: tuple[dict[int, Any], dict[int, Any]] = ({}, {})
    for size in sizes:
        for side, rate in enumerate(rates):
            rights[side][size] = {s: (rng.random((6, size // 6)) < rate).tolist() for s in range(3)}
    ids = examples(of_set)
    return answers_of(rights[0], ids=ids), answers_of(rights[1], ids=ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the folder of a run: one comparison that is decided, one that is not, and one that collapsed."""
    made = planned(
        "--sets", "planted-role", "--sizes", "60,120,240", "--seeds", "0,1,2", "--with", "hidden=20",
        "--with", "noise=1", "--with", "control=word_order",
    )  # fmt: skip
    tmp_path = tmp_path_factory.mktemp("data")
    artifacts = Artifacts(open_store(str(tmp_path / "store")))
    sizes = (60, 120, 240)
    first, worse = drawn(0, sizes, (0.95, 0.4))
    artifacts.write_table(made.answers[0, "planted-role"], first)
    artifacts.write_table(made.answers[1, "planted-role"], first)  # the same answers: no difference
    artifacts.write_table(made.answers[2, "planted-role"], worse)
    artifacts.write_table(made.answers[3, "planted-role"], drawn(1, sizes, (0.8, 0.8))[0])
    return assembled(SimpleNamespace(plan=made, artifacts=artifacts), tmp_path / "runs")


def test_rows_are_the_figures_of_the_largest_size_and_what_it_needs(folder: Run) -> None:
    rows = {(row["entrant"], row["metric"]): row for row in folder.tables["results"].to_pylist()}
    noisy = {metric: row for (entrant, metric), row in rows.items() if entrant == "noise 1"}
    lines = [row for row in folder.tables["sizes"].to_pylist() if row["entrant"] == "noise 1"]
    assert [line["size"] for line in lines] == [60, 120, 240]
    largest = lines[-1]
    assert noisy["data.difference"]["value"] == pytest.approx(largest["difference"]) and largest["difference"] < -0.4
    assert noisy["data.power"]["value"] == pytest.approx(largest["power"]) and largest["power"] > 0.95
    assert (largest["num_train"], largest["num_dev"], largest["num_test"]) == (160, 40, 40)
    assert noisy["data.power"]["n"] == 40
    *_, by_size = opened(folder)[f"cells/{noisy['data.power']['cell_id']}"]
    assert [texts[2] for texts in texts_of(*tables_of(*by_size.blocks))] == ["60", "120", "240"]
    recommended = noisy["data.recommended"]["value"]
    assert recommended is not None and recommended < 240
    bound = required_training_size(largest["difference"], 8)
    published = required_training_size(largest["difference"], 8, "published")
    assert noisy["data.bound"]["value"] == bound and noisy["data.bound_published"]["value"] == published
    details = {row["cell_id"]: json.loads(row["details"]) for row in folder.tables["details"].to_pylist()}
    parts = details[noisy["data.recommended"]["cell_id"]]
    assert sum(parts.values()) == recommended and parts["num_train"] == pytest.approx(4 * parts["num_test"], abs=3)
    assert noisy["data.margin"]["value"] == pytest.approx(bound / parts["num_train"])  # type: ignore[operator]
    same = rows["MLP 20", "data.recommended"]
    assert same["value"] is None and same["status"] == "collapsed"
    assert rows["MLP 20", "data.power"]["value"] == 0.0 and rows["MLP 20", "data.bound"]["status"] == "no_effect"


def test_every_figure_of_several_sets_is_a_cell_of_its_own(tmp_path: Path) -> None:
    """Details are found by the cell: those of one set never stand beside another."""
    made = planned(
        "--sets", "planted-role,planted-pos", "--sizes", "60,240", "--seeds", "0,1,2", "--with", "noise=1",
        "--with", "noise=2",
    )  # fmt: skip
    artifacts = Artifacts(open_store(str(tmp_path / "store")))
    for (number, name), key in made.answers.items():
        artifacts.write_table(
            key, drawn(len(name), (60, 240), (0.95, 0.4 + 0.1 * number + 0.01 * len(name)), name)[number > 0]
        )
    rows = assemble(made, artifacts, {}, "run")["results"].to_pylist()
    figures = [row for row in rows if row["metric"].startswith("data.")]
    assert len(figures) == 2 * 2 * 9 == len({row["cell_id"] for row in figures})


def test_the_page_says_how_many_examples_and_what_is_wrong(folder: Run, capsys: pytest.CaptureFixture[str]) -> None:
    made = page_of(folder)
    html, markdown = rendered(made)
    assert "1 of 3 comparisons with a power of 0.8 or more" in made.answer.text
    assert "cannot be distinguished at any size at hand" in made.answer.text
    assert "upper bounds that no data set meets" in " ".join(made.answer.sentences)
    assert "the first two" not in " ".join(made.answer.sentences)  # comparisons do not compete
    leaderboard([folder.id], folder.path.parent, power=True)
    printed = capsys.readouterr()
    assert "## Board" in printed.out and "their power stands on the board" in printed.err
    board = cells_of(made.board)
    assert board["noise 1"]["power (test)"].endswith("(40)") and board["MLP 20"]["recommended"] == "collapsed"
    assert made.picture is not None and "recommended" in made.picture.captions[1].text
    assert any("collapsed" in problem.text and "MLP 20 on planted-role" in problem.text for problem in made.problems)
    assert any("fewer than 6 examples" in problem.text for problem in made.problems)
    (needs,) = tables_of(*part_of(made, "needs").blocks)
    assert texts_of(needs)[0][0] == "noise 1"
    assert "noise 1" in html and "What to collect" in markdown
    assert "with 6 folds in rotation under 3 seeds" in " ".join(made.answer.sentences)


def test_theory_and_subsamples_stand_beside_every_size(folder: Run) -> None:
    """The bound by its formula; shares of one sign by subsamples that are drawn here."""
    sizes = {(row["entrant"], row["size"]): row for row in folder.rows("sizes")}
    for row in sizes.values():
        gap = math.sqrt(2 * math.log(2 * 9 * 2**32 / 1e-8) / row["num_train"]) / 2  # 8 weights and an intercept
        if row["entrant"] != "MLP 20":
            assert row["accuracy_bound"] == pytest.approx(gap)
        else:
            hidden = 9 * 20 + 21
            assert row["accuracy_bound"] == pytest.approx(gap * math.sqrt(_log_f(hidden) / _log_f(9)))
        assert row["bound_published"] == required_training_size(
            row["difference"], 8, "published", hidden=20 if row["entrant"] == "MLP 20" else None
        )
    assert sizes["noise 1", 240]["same_sign"] == 1.0 and sizes["MLP 20", 240]["same_sign"] == 0.0
    page = page_of(folder)
    (theory,) = tables_of(*part_of(page, "theory").blocks)
    lines = {tuple(texts[:3]): texts[3:] for texts in texts_of(theory)}
    answers = [row for row in folder.rows("answers", configuration="A1_mean final") if row["size"] == 240]
    by_seed = [[row["right"] for row in answers if row["seed"] == seed] for seed in range(3)]
    means = [fmean(rights) for rights in by_seed]
    bound = sizes["noise 1", 240]["accuracy_bound"]
    first = lines["A1_mean final", "planted-role", "160"]
    assert first[:2] == [f"{fmean(means):.3f}", f"{3 * stdev(means):.3f}"] and first[3] == "yes"
    assert first[2] == f"{bound:.3f}"
    assert any("in over 5% of repeated subsamples" in problem.text for problem in page.problems)


def _log_f(num_weights: int) -> float:
    return math.log(2 * num_weights * 2**32 / 1e-8)


def test_subsamples_keep_groups_whole() -> None:
    """Pairs whose members contradict each other say nothing; half of two groups is one of them."""
    gaps, groups = np.array([1, -1, 1, -1, 1, 1]), np.array(["a", "a", "b", "b", "c", "c"])
    assert sign_share(gaps, groups) == pytest.approx(1 / 3, abs=0.05)
    assert sign_share(gaps, np.arange(6)) == pytest.approx(0.8, abs=0.05)  # 16 of 20 subsets
    assert sign_share(-np.abs(gaps), groups) == 1.0 and sign_share(np.array([1, -1]), np.arange(2)) == 0.0


def test_published_probes_are_planned_beside_ours_without_those_of_a_code_length(tmp_path: Path) -> None:
    options = ("--sets", "planted-role", "--sizes", "60,120,240", "--seeds", "0,1,2", "--with", "noise=1")
    plain, made = (
        planned(*options, "--with", "code_length=true", *protocol) for protocol in ((), ("--protocol", "published"))
    )
    assert made.answers == plain.answers and not plain.published
    assert set(made.published) == {(0, "planted-role"), (1, "planted-role")}
    assert not set(made.published.values()) & set(made.answers.values())
    params = [steps.PILOT.params_of(made.producers[key]) for key in made.answers.values()]
    assert [of_side.code_length for of_side in params] == [False, False, True]
    artifacts = Artifacts(open_store(str(tmp_path / "store")))
    for keys, rates in ((made.answers, (0.9, 0.6)), (made.published, (0.8, 0.7))):
        for (number, _), key in keys.items():
            artifacts.write_table(key, drawn(0, (60, 120, 240), rates)[min(number, 1)])
    run = assembled(SimpleNamespace(plan=made, artifacts=artifacts), tmp_path / "runs")
    published = {row["metric"]: row for row in run.rows("published")}
    assert {row["entrant"] for row in run.rows("published")} == {"noise 1"}
    assert {row["protocol"] for row in run.rows("published")} == {"published"}
    (table,) = tables_of(*part_of(page_of(run), "published").blocks)
    (texts,) = texts_of(table)
    own = next(row for row in run.rows("results", metric="data.difference", entrant="noise 1"))
    difference = published["data.difference"]["value"]
    assert texts[:3] == ["noise 1", "planted-role", f"{difference:+.3f}"] and difference > own["value"]
    comparisons = {row["entrant"]: row for row in run.rows("comparisons")}
    assert comparisons["C by code length"]["second_code_length"] is True
    assert comparisons["noise 1"]["second_code_length"] is False


def test_a_run_keeps_its_name_and_a_code_length_chooses_linear_probes_alone() -> None:
    assert configured().config_hash() == "30b7f39f28706e2d"
    with pytest.raises(ConfigError, match="code_length chooses the C of a linear probe; leave out hidden"):
        configured("--with", "hidden=20,code_length=true")


def test_a_run_with_one_comparison_answers_in_a_sentence_about_it(tmp_path: Path) -> None:
    made = planned("--sets", "planted-role", "--sizes", "60,240", "--seeds", "0,1,2", "--with", "noise=1")
    artifacts = Artifacts(open_store(str(tmp_path / "store")))
    for number, table in enumerate(drawn(0, (60, 240), (0.95, 0.4))):
        artifacts.write_table(made.answers[number, "planted-role"], table)
    run = assembled(SimpleNamespace(plan=made, artifacts=artifacts), tmp_path / "runs")
    text = page_of(run).answer.text
    assert text.startswith("Take ") and "distinguish noise 1 from A1_mean final with a power of 0.8" in text
    assert "training," in text and "the 240 at hand have a power of" in text
    answers = SUITES.get(SUITE).load().answers(run)
    assert set(answers["planted-role"]) == {"A1_mean final", "A1_mean final, noise 1"}
    assert len(answers["planted-role"]["A1_mean final"]) == 240


def test_a_failed_pilot_is_a_null_with_its_reason(tmp_path: Path) -> None:
    made = planned("--sets", "planted-role", "--sizes", "60,240", "--seeds", "0,1,2", "--with", "noise=1")
    tables = assemble(made, Artifacts(open_store(str(tmp_path / "empty"))), {}, "run")
    rows = [row for row in tables["results"].to_pylist() if row["metric"].startswith("data.")]
    assert {row["status"] for row in rows} == {"failed"} and all("missing" in row["reason"] for row in rows)
    assert {row["status"] for row in tables["sizes"].to_pylist()} == {"failed"}


def test_a_run_is_submitted_and_verified(folder: Run, tmp_path: Path) -> None:
    verdict, _ = submitted(folder, tmp_path)
    require_without_scores(verdict)
