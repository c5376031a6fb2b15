"""One command for several models: a run for each, in turn, and a board over all of them."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.conftest import BUDGET, WIDTH, Driver, SteeredArtifacts
from driver.tests.loop_bench import Bench, Notes, job_of

from poolbench.config import ModelRef, asset_path
from poolbench.contracts.wire import RUN_FILES, run_path
from poolbench.errors import ConfigError, EndpointError, InputError, LayerError, ModelError, UnknownNameError
from poolbench.pooling.registry import STRATEGIES
from poolbench.settings import ClusterSettings
from poolbench.statuses import RunState
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.cli.run import show_all
from poolbench_driver.cli.runs import leaderboard
from poolbench_driver.cli.upkeep import needed_by
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import RunConfig
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.job import Job, prepare
from poolbench_driver.loop.progress import Display
from poolbench_driver.models import ModelInfo
from poolbench_driver.records import Run, run_id, writer
from poolbench_driver.records.folder import write_state
from poolbench_driver.records.record import RunRecords
from poolbench_driver.series import BOARDS, prepare_all
from poolbench_driver.stages.plan import ConceptsPlan, make_plan
from poolbench_driver.stages.scope import Scope

pytestmark = pytest.mark.lane(name="series")

MODELS = {"first": 6, "second": 8}
NAMES = ("A1_mean", "L5_keyword")


def run_all(jobs: list[Job], output: Path, open_display: Callable[[], Display], max_failures: int | None) -> int:
    """Run jobs as the command does, and return its exit code."""
    return show_all(jobs, output, open_display, max_failures)[0]


class Watched(Notes):
    """A display that calls a function when its run starts."""

    def __init__(self, at_start: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.at_start = at_start

    def start(self, totals: Counter[str]) -> None:
        self.at_start()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[ConceptsPlan]]:
    """Plans for two models of different depth, and a store with all artifacts of both."""
    artifacts, plans = Artifacts(FolderStore(tmp_path_factory.mktemp("written"))), []
    for model, num_blocks in MODELS.items():
        settings = {"model": model, "concepts": ["contrast", "hedging"], "layers": [1, 1.0], "budget": BUDGET}
        config = load_run_config(None, {"preset": "demo", "steering": {"temperature": 0.0}, **settings})
        info = ModelInfo(ModelRef(model, "somewhere", f"local-{model}", "float32"), num_blocks, WIDTH)
        plan = make_plan(Scope(config, info, tuple(STRATEGIES.get(name) for name in NAMES)))
        made = SteeredArtifacts(artifacts.store.root, plan)
        made.write(lambda key, opening, strength, scorer: 0.3 + 0.1 * strength)
        for key in plan.keys:
            if not artifacts.exists(key):
                artifacts.write_table(key, pa.table({"unread": [1]}))
        plans.append(plan)
    return artifacts.store.root, plans


@pytest.fixture
def jobs(bench: Bench, written: tuple[Path, list[ConceptsPlan]]) -> list[Job]:
    """The runs of both models, in a copy of the store."""
    shutil.copytree(written[0], bench.artifacts.store.root, dirs_exist_ok=True)
    return [job_of(bench, plan) for plan in written[1]]


def test_a_plan_has_the_settings_of_its_suite(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a suite makes for the stages are others: a run's folder with them could not be read again."""
    job = jobs[0]
    stray = replace(job.plan, config=RunConfig())
    suite = SUITES.get("poolbench").load()
    monkeypatch.setattr(type(suite), "resolve", lambda *_: job.plan.scope)
    monkeypatch.setattr(type(suite), "plan", lambda *_: stray)
    with pytest.raises(TypeError, match="a plan of poolbench needs PoolBenchConfig and has RunConfig"):
        prepare(job.config, job.session)


def test_a_run_is_planned_where_its_model_is_not(
    jobs: list[Job], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gc` and `export` find the artifacts of a run without its model; `gc` believes the record if even that fails."""
    run_all(jobs, tmp_path, Watched, None)
    job, session = jobs[0], jobs[0].session
    folder = Run(tmp_path / run_id(job.config))
    with pytest.raises(UnknownNameError):
        prepare(job.config, session)
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "state"))
    with pytest.raises(ModelError, match="run `make model`"):  # a run obtains it first; nothing else downloads it
        prepare(job.config.model_copy(update={"model": "smollm2-135m"}), session)
    planned, expected = (prepare(job.config, session, each).plan for each in (folder.model, job.plan.scope.model))
    assert planned.keys == expected.keys
    folder.file("model.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"model\.json is damaged"):
        folder.model  # noqa: B018
    records = RunRecords(session.artifacts.store)
    assert needed_by([Run(folder.path, record=records.get(folder.id))], session) == job.plan.keys
    assert f"{folder.id} cannot be planned here" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=rf"{folder.id} has no record .*model\.json is damaged.* remove "):
        needed_by([Run(folder.path)], session)


def boards(output: Path) -> list[Path]:
    return sorted((output / BOARDS).glob("*"))


def test_the_board_holds_every_model(jobs: list[Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_all(jobs, tmp_path, Watched, None) == 0
    as_json, as_markdown = boards(tmp_path)
    found = json.loads(as_json.read_text())
    assert [(run["model"], run["layers"]) for run in found["runs"]] == [("first", [1, 5]), ("second", [1, 7])]
    assert [run["run"] for run in found["runs"]] == [run_id(job.config) for job in jobs]
    (best, other) = found["ranks"]["d1.auroc"]["standings"]
    assert (best["strategy"], other["strategy"]) == NAMES
    text = as_markdown.read_text()
    assert "# Ranks over 2 models" in text and "| strategy | first (2) | second (2) |" in text
    assert "## Ranks on d2.scp" in text
    printed = capsys.readouterr()
    assert "## Ranks on d1.auroc: 2 concepts" in printed.out and f"board: {as_markdown}" in printed.out
    assert "model 2 of 2: second" in printed.err


def test_the_leaderboard_of_several_runs_is_the_board_that_their_command_printed(
    jobs: list[Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_all(jobs, tmp_path, Watched, None)
    names, printed = [run_id(job.config) for job in jobs], capsys.readouterr().out
    leaderboard(names, tmp_path)
    board = capsys.readouterr().out.strip()
    assert board.startswith("## Ranks on d1.auroc: 2 concepts") and board in printed
    leaderboard(names, tmp_path, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert {row["model"] for row in found if row["metric"] == "d1.auroc"} == set(MODELS)
    best = [row for row in found if row["metric"] == "rank.mean" and json.loads(row["params"])["of"] == "d1.auroc"]
    assert [row["strategy"] for row in best[:2]] == list(NAMES) and best[0]["value"] < best[1]["value"]
    leaderboard(names[:1], tmp_path, as_json=True)
    alone = json.loads(capsys.readouterr().out)
    assert {row["model"] for row in alone if row["metric"] == "d1.auroc"} == {"first"}


def test_a_recorded_board_comes_after_that_of_runs(
    jobs: list[Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_all(jobs, tmp_path, Watched, None)
    (tmp_path / "table.csv").write_text("probing dataset,A,B\ndep,.9,.8\n")
    names, table = [run_id(job.config) for job in jobs], tmp_path / "table.csv"
    capsys.readouterr()
    leaderboard(names, tmp_path, "holmes", table)
    runs, _, recorded = capsys.readouterr().out.partition("## Recorded board: holmes")
    assert "## Ranks on d1.auroc" in runs and "| 1 | A | 100.0 |" in recorded
    leaderboard(names, tmp_path, "holmes", table, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [row["entrant"] for row in found["recorded"]] == ["A", "B"] and len(found["runs"]) > 2
    with pytest.raises(ConfigError, match="'poolbench' does not read recorded tables"):
        leaderboard(names, tmp_path, None, table)


def test_the_same_command_writes_the_same_board(jobs: list[Job], tmp_path: Path) -> None:
    run_all(jobs, tmp_path, Watched, None)
    before = [file.read_bytes() for file in boards(tmp_path)]
    assert run_all(jobs, tmp_path, Watched, None) == 0
    assert [file.read_bytes() for file in boards(tmp_path)] == before


def stopping(error: BaseException) -> Callable[[], Display]:
    """Displays of which the second raises an error."""
    calls = []

    def raised() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise error

    return lambda: Watched(raised)


def test_an_interrupted_command_continues(jobs: list[Job], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, tmp_path, stopping(KeyboardInterrupt()), None)
    assert boards(tmp_path) == []
    assert run_all(jobs, tmp_path, Watched, None) == 0
    assert len(boards(tmp_path)) == 2


def test_a_run_is_done_when_all_of_it_is_there(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[tuple[bool, ...]]()

    def watched(folder: Run, state: RunState, **fields: Any) -> dict[str, Any]:
        if state == RunState.DONE:
            stored = jobs[0].session.artifacts.store.exists(run_path(folder.id, f"{RUN_FILES}manifest.json"))
            found.append((stored, *(folder.file(name).is_file() for name in ("manifest.json", "report/index.html"))))
        return write_state(folder, state, **fields)

    monkeypatch.setattr(writer, "write_state", watched)
    assert run_all(jobs, tmp_path, Watched, None) == 0
    assert found == [(True, True, True)] * 2


def test_a_model_that_fails_is_named_and_missing_from_the_board(
    jobs: list[Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_all(jobs, tmp_path, stopping(InputError("its window is too short")), None) == 1
    printed = capsys.readouterr().err
    assert "error: second: its window is too short" in printed and "the board is without second" in printed
    assert len(json.loads(boards(tmp_path)[0].read_text())["runs"]) == 1


def test_a_model_that_fails_does_not_stop_those_after_it(jobs: list[Job], tmp_path: Path) -> None:
    assert run_all([jobs[1], jobs[0]], tmp_path, stopping(InputError("x")), None) == 1
    assert [run["model"] for run in json.loads(boards(tmp_path)[0].read_text())["runs"]] == ["second"]


def test_a_lost_cluster_stops_the_command(jobs: list[Job], tmp_path: Path) -> None:
    with pytest.raises(EndpointError):
        run_all(jobs, tmp_path, stopping(EndpointError("the store is gone")), None)


def test_a_cancelled_run_stops_those_after_it(
    jobs: list[Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifacts = jobs[0].session.artifacts
    artifacts.delete(next(iter(jobs[0].plan.probes.concepts["contrast"].measures.values())))
    records = RunRecords(artifacts.store)
    assert run_all(jobs, tmp_path, lambda: Watched(lambda: records.cancel(run_id(jobs[0].config))), None) == 1
    assert "was cancelled, so the models after it are not run" in capsys.readouterr().err
    assert not (tmp_path / run_id(jobs[1].config)).exists()


def test_an_error_before_the_start_names_the_model(bench: Bench) -> None:
    common: dict[str, Any] = {"preset": "demo", "layers": [9], "corpus": {"source": "planted"}}
    configs = [load_run_config(None, {**common, "model": model}) for model in ("demo", "planted")]
    settings = ClusterSettings("", "", http_address="http://127.0.0.1:9")
    session = Session(settings, bench.artifacts, bench.queue, bench.leases, None)  # type: ignore[arg-type]
    with pytest.raises(LayerError, match=r"^demo: layer 9 is out of range"):
        prepare_all(configs, session)


@pytest.fixture
def other_model(tmp_path: Path) -> str:
    """A model of four blocks: what planning reads of it."""
    folder = tmp_path / "other"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(asset_path("demo_lm") / name, folder)
    config = json.loads((asset_path("demo_lm") / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    return str(folder)


def test_a_dry_run_sums_the_models(cli: Driver, other_model: str) -> None:
    def found(models: str) -> dict[str, Any]:
        arguments = ("run", "--model", models, "--concepts", "contrast,hedging", "--dry-run", "--preset", "demo")
        done = cli(*arguments, "--corpus", "planted", "--display", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    demo, other, both = found("demo"), found(other_model), found(f"demo,{other_model}, demo")
    assert [run["layers"] for run in both["runs"]] == [[2, 4, 5], [1, 2, 3]]
    assert {name: 2 * demo["texts"][name] for name in demo["texts"]} == both["texts"]
    shared = demo["tasks_to_do"] + other["tasks_to_do"] - both["tasks_to_do"]
    tasks = {stage["kind"]: stage["tasks"] for stage in demo["estimate"]["stages"]}
    assert shared == tasks["pooler.annotate"] + tasks["scorer.train"]  # they do not depend on the model
    totals = [each["estimate"]["total"]["bytes"]["expected"] for each in (*both["runs"], both)]
    assert totals[2] == pytest.approx(sum(totals[:2]), rel=1e-3)


def test_models_of_one_board_start_from_one_preset(cli: Driver, other_model: str) -> None:
    arguments = ("run", "--model", f"demo,{other_model}", "--concepts", "contrast", "--metrics", "d1", "--dry-run")
    done = cli(*arguments, "--corpus", "planted", "--display", "json")
    assert done.returncode == 0, done.stderr
    assert [len(run["layers"]) for run in json.loads(done.stdout)["runs"]] == [2, 2]  # those of `small`


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--model", "demo,dmeo"), "did you mean demo"),
        (("--model", "demo", "--set", "model=demo"), "two models"),
    ],
)
def test_wrong_models_are_refused(cli: Driver, arguments: tuple[str, ...], expected: str) -> None:
    done = cli("run", *arguments)
    assert done.returncode == 2 and expected in done.stderr
