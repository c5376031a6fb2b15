"""The suite ce-bench: autoencoders by name or folder, stories, the plan, rows from real contrasts, the page."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from driver.tests.page_reader import cells_of, opened, part_of, rendered, texts_of
from safetensors.numpy import load_file, save_file
from starlette.testclient import TestClient
from tests.servers.services import cluster_environment, serving
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.config import resolve_model
from poolbench.contracts import tables as t
from poolbench.contracts.measures import Measure, measures_table
from poolbench.errors import ConfigError, CorpusError, InputError, NotFoundError, PoolbenchError
from poolbench.settings import ClusterSettings
from poolbench.statuses import Status
from poolbench.steps.extractor import FEATURES_OF, RECOVERED
from poolbench.steps.prober import CONTRAST
from poolbench.storage import Artifacts, open_store
from poolbench.worker.service import load_service
from poolbench.worker.taskio import TaskIO
from poolbench_corpora.stories import read_stories
from poolbench_driver.assemble import assemble
from poolbench_driver.cli.runs import leaderboard
from poolbench_driver.cluster.services import Services
from poolbench_driver.console.app import Console
from poolbench_driver.console.source import RunSource
from poolbench_driver.contract.page import Answer, Passage
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.evidence import tokens_of
from poolbench_driver.imports.saes import import_saes, places_of
from poolbench_driver.models import ModelInfo
from poolbench_driver.pages.html import pieces
from poolbench_driver.records import RunFolder
from poolbench_driver.records.record import encode_keys
from poolbench_driver.report import page_of, write_report
from poolbench_driver.stages.failure import Failure
from poolbench_driver.suites.ce_bench import plan as planning
from poolbench_driver.suites.ce_bench.config import CeBenchConfig
from poolbench_driver.suites.ce_bench.families import Entrant
from poolbench_driver.suites.ce_bench.plan import CeBenchPlan, check, plan, resolve
from poolbench_driver.suites.ce_bench.view import View, agreement
from poolbench_prober.service import create

MODEL = ModelInfo(resolve_model("demo"), 6, 256)
WIDTH, NUM_FEATURES = 256, 8
SUBJECTS = ("calm", "speed", "trust")


def put_sae(folder: Path, seed: int = 0, *, width: int = WIDTH, **config: Any) -> Path:
    """Write an autoencoder of random weights in the canonical format."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed).standard_normal
    shapes = {
        "W_enc": (width, NUM_FEATURES),
        "W_dec": (NUM_FEATURES, width),
        "b_enc": (NUM_FEATURES,),
        "b_dec": (width,),
    }
    save_file({name: draw(shape, np.float32) for name, shape in shapes.items()}, folder / "sae.safetensors")
    settings = {
        "architecture": "standard",
        "apply_b_dec_to_input": False,
        "hook_name": "blocks.3.hook_resid_post",
        **config,
    }
    (folder / "cfg.json").write_text(json.dumps(settings))
    return folder


def put_stories(file: Path, rows: list[Mapping[str, str]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def pair(subject: str, row: int = 0, **columns: str) -> dict[str, str]:
    stories = {"story1": f"{row}: it was <subject>very {subject}</subject>.", "story2": f"{row}: it was not {subject}."}
    return {"subject": subject, **stories, **columns}


@pytest.fixture
def saes(tmp_path: Path) -> Path:
    """Return a folder with two autoencoders of block 3 and one of block 1."""
    put_sae(tmp_path / "saes" / "one", 1)
    put_sae(tmp_path / "saes" / "two", 2)
    put_sae(tmp_path / "saes" / "low", 3, hook_name="blocks.1.hook_resid_post")
    return tmp_path / "saes"


@pytest.fixture
def stories(tmp_path: Path) -> str:
    return put_stories(tmp_path / "own.jsonl", [pair(subject, row) for subject in SUBJECTS for row in range(4)])


def config_of(*saes: Path | str, **settings: Any) -> CeBenchConfig:
    return CeBenchConfig(suite="ce-bench", **{"saes": tuple(map(str, saes)), "num_bootstrap": 100, **settings})


def plan_of(*saes: Path | str, **settings: Any) -> CeBenchPlan:
    return plan(resolve(config_of(*saes, **settings), SimpleNamespace(services=None), MODEL))  # type: ignore[arg-type]


def outputs(made: CeBenchPlan) -> set[str]:
    return {key for task in made.tasks.values() for key in task.outputs.values()}


def test_one_pass_over_the_stories_for_all_autoencoders_of_a_layer(
    saes: Path, stories: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SHARD", 10)
    made = plan_of(saes, stories=stories)
    read = [task for task in made.tasks.values() if task.kind == FEATURES_OF.kind]
    shards = -(-len(read_stories(stories).passages) // 10)
    assert shards == 3 and len(read) == 2 * shards
    assert sorted(FEATURES_OF.params_of(task).layer for task in read) == [1] * shards + [3] * shards
    of_layer = {FEATURES_OF.params_of(task).layer: set(task.outputs) for task in read}
    assert of_layer[1] == {"coordinates", "features/0", "random/0"}  # in the order of their names: low, one, two
    assert of_layer[3] == {"coordinates", "features/1", "random/1", "features/2", "random/2"}
    compared = [task for task in made.tasks.values() if task.kind == CONTRAST.kind]
    assert sorted(len(task.outputs) for task in compared) == [2 * 3 + 1, 2 * 5 + 2]  # features of autoencoders alone
    entrants = {at.entrant for at in made.contrasts}
    assert entrants == {"low", "low random", "one", "one random", "two", "two random", "coordinates 1", "coordinates 3"}


def test_the_loss_is_measured_on_the_first_distinct_stories(saes: Path, tmp_path: Path) -> None:
    """Two stories with the same text and other marks are one text. Without the loss, no other key moves."""
    rows = [pair("calm"), pair("calm", story1="0: it was very <subject>calm</subject>."), pair("speed"), pair("trust")]
    file = put_stories(tmp_path / "own.jsonl", rows)
    made, without = (plan_of(saes, stories=file, num_loss_stories=number) for number in (3, 0))
    read = [task for task in made.tasks.values() if task.kind == RECOVERED.kind]
    assert sorted(RECOVERED.params_of(task).layer for task in read) == [1, 3]
    (key,) = {task.inputs["passages"] for task in read}
    assert made.local[key].build()["text"].to_pylist() == [
        "0: it was very calm.", "0: it was not calm.", "0: it was very speed.",
    ]  # fmt: skip
    assert made.local[key].build()["group"].to_pylist() == ["0", "0", "1"]
    assert outputs(made) - outputs(without) == {key for task in read for key in task.outputs.values()}
    assert outputs(without) < outputs(made) and not without.recovered
    assert made.recovered.keys() == {at.entrant for at in made.contrasts}


def test_keys_do_not_depend_on_order_or_names_of_autoencoders(saes: Path, stories: str, tmp_path: Path) -> None:
    made = plan_of(saes / "one", saes / "two", stories=stories)
    assert outputs(plan_of(saes / "two", saes / "one", stories=stories)) == outputs(made)
    renamed = (saes / "two").rename(saes / "renamed")
    assert outputs(plan_of(renamed, saes / "one", stories=stories)) == outputs(made)
    assert outputs(plan_of(saes / "one", stories=stories)) < outputs(made)
    assert not outputs(plan_of(saes / "low", stories=stories)) & outputs(made)


def test_published_stands_beside_corrected_and_reads_in_its_own_way(saes: Path, stories: str) -> None:
    made = plan_of(saes / "one", stories=stories, protocol="published")
    assert outputs(plan_of(saes / "one", stories=stories)) < outputs(made)
    read = {task.task_id: FEATURES_OF.params_of(task) for task in made.tasks.values() if task.kind == FEATURES_OF.kind}
    ways = {(params.dtype, params.include_bos, params.sinks) for params in read.values()}
    assert ways == {("bfloat16", True, "include"), (MODEL.ref.dtype, False, "exclude")}
    texts = {made.local[made.tasks[name].inputs["passages"]].build()["text"][0].as_py() for name in read}
    assert sorted("<subject>" in text for text in texts) == [False, True]


def test_an_autoencoder_of_the_embedding_reads_the_embedding(saes: Path, stories: str, tmp_path: Path) -> None:
    """`blocks.0.hook_resid_pre` is layer -1, which must not mean the last block."""
    put_sae(tmp_path / "first", hook_name="blocks.0.hook_resid_pre")
    assert {at.layer for at in plan_of(tmp_path / "first", stories=stories).contrasts} == {-1}


def _dead(folder: Path) -> Path:
    put_sae(folder)
    (folder / "sae.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    return folder


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: put_sae(path, width=16), "reads width 16; the states of demo have 256"),
        (lambda path: put_sae(path, hook_name="blocks.3.hook_mlp_out"), "only the residual stream"),
        (lambda path: put_sae(path, hook_name="blocks.9.hook_resid_post"), "layer 9 is out of range"),
        (lambda path: put_sae(path, hook_name=None), "names no layer; give --layer"),
        (lambda path: put_sae(path, 1), "it has the weights and the configuration of one"),
        (_dead, "safetensors"),
    ],
)
def test_an_autoencoder_that_cannot_be_used_is_left_out_and_the_rest_goes_on(
    saes: Path, stories: str, tmp_path: Path, make: Callable[[Path], Path], reason: str
) -> None:
    wrong = make(tmp_path / "wrong")
    made = plan_of(saes / "one", wrong, stories=stories)
    assert {at.entrant for at in made.contrasts} == {"one", "one random", "coordinates 3"}
    (note,) = made.scope.notes
    assert str(wrong) in note and reason in note and note in made.facts.notes
    if "configuration of one" not in reason:
        with pytest.raises(InputError, match=reason.partition(";")[0]):
            plan_of(wrong, stories=stories)


def test_a_layer_is_given_for_an_autoencoder_that_names_none(stories: str, tmp_path: Path) -> None:
    put_sae(tmp_path / "nameless", hook_name=None)
    assert {at.layer for at in plan_of(tmp_path / "nameless", stories=stories, layer=0.5).contrasts} == {2}


def test_autoencoders_are_found_by_name_path_or_folder(
    saes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(places_of(["saes"])) == ["low", "one", "two"]
    assert places_of(["one"]) == {"one": Path("saes/one")}
    assert list(places_of([str(saes / "two" / "sae.safetensors")])) == ["two"]
    llama = tmp_path / "saes" / "llama"
    (llama / "checkpoints").mkdir(parents=True)
    (llama / "hyperparams.json").write_text("{}")
    (llama / "checkpoints" / "final.safetensors").write_bytes(b"")
    assert list(places_of(["saes"])) == ["llama", "low", "one", "two"]
    (tmp_path / "empty").mkdir()
    for given, reason in (
        (["empty"], "empty holds no autoencoder"),
        (["none"], "--saes none: there is no such path"),
        (["one", str(saes)], "two autoencoders are called one"),
    ):
        with pytest.raises(ConfigError, match=reason):
            places_of(given)


def test_the_shipped_autoencoders_are_those_of_the_demo_model(stories: str) -> None:
    made = plan_of("demo", stories=stories)
    found = {(sae.architecture, sae.num_features, sae.layer) for sae in made.scope.saes}
    assert found == {(name, size, 3) for name in ("relu", "topk", "jumprelu") for size in (512, 2048)}
    assert not made.scope.notes


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"subject": "calm", "story1": "It was calm."}, "no 'story2'"),
        (pair("calm", story1="It was <subject>very calm."), "has no </subject> after it"),
        (pair("calm", story1="It was <subject></subject> calm."), "is marked but has no word"),
    ],
)
def test_a_pair_that_cannot_be_used_is_left_out_with_file_and_line(
    saes: Path, tmp_path: Path, wrong: Mapping[str, str], reason: str
) -> None:
    file = tmp_path / "own.jsonl"
    put_stories(file, [pair("speed"), wrong, pair("trust", 1)])
    made = plan_of(saes / "one", stories=str(file))
    assert made.scope.stories.rows["subject"].to_pylist() == ["speed", "trust"]
    (note,) = made.facts.notes
    assert "own.jsonl" in note and "2" in note.partition(reason)[0] and reason in note
    put_stories(file, [wrong])
    with pytest.raises(CorpusError, match="has no pair of stories"):
        check(config_of(saes, stories=str(file)))


def test_mistakes_end_in_one_line(
    driver: Callable[..., CompletedProcess[str]],
    environment: dict[str, str],
    saes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    put_stories(tmp_path / "bad.jsonl", [pair("calm", story1="<subject>calm")])
    for arguments, reason in (
        (("--saes", "nothing"), "--saes nothing: there is no such path"),
        (("--saes", "saes", "--stories", "plantd"), "did you mean planted"),
        (("--saes", "saes", "--stories", "contrastive-stories-v4"), "download GulkoA/contrastive-stories-v4"),
        (("--saes", "saes", "--stories", "bad.jsonl"), "bad.jsonl"),
    ):
        done = driver(environment, "run", "--suite", "ce-bench", *arguments)
        assert done.returncode == 2 and reason in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_what_is_imported_is_listed_and_found(
    driver: Callable[..., CompletedProcess[str]],
    environment: dict[str, str],
    saes: Path,
    stories: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _dead(saes / "dead")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = driver(environment, "import", "stories", stories, "--name", "mine")
    assert done.returncode == 0 and "12 pairs of stories in stories/mine.jsonl" in done.stdout
    assert read_stories("mine", folders=(Path("stories"),)).rows.equals(read_stories(stories).rows)
    listed = json.loads(driver(environment, "ls", "stories", "--json").stdout)
    assert [row["name"] for row in listed if row["here"]] == ["planted", "mine"]
    done = driver(environment, "import", "saes", str(saes))
    assert done.returncode == 0 and "3 autoencoders in saes: low, one, two" in done.stdout and "dead" in done.stderr
    (Path("saes") / "one" / "cfg.json").write_text("{")
    done = driver(environment, "ls", "saes", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["low"] == {"name": "low", "architecture": "relu", "d": NUM_FEATURES, "layer": 1, "d_in": WIDTH}
    assert "one" not in rows and "saes/one: cfg.json" in done.stderr and rows["topk-512"]["d"] == 512
    assert outputs(plan_of("two", stories="mine")) == outputs(plan_of(saes / "two", stories=stories))


def test_an_import_of_one_autoencoder_keeps_its_name(saes: Path, tmp_path: Path) -> None:
    assert import_saes(saes / "two", tmp_path / "to").names == ["two"]
    assert (tmp_path / "to/two/cfg.json").read_bytes() == (saes / "two" / "cfg.json").read_bytes()


def features_of(made: CeBenchPlan, task: Any) -> dict[str, pa.Table]:
    """Return FEATURES for each role: an autoencoder has a feature per subject that only its high stories have."""
    rows = [row for data in made.scope.by_protocol.values() for row in data.rows.to_pylist()]
    subjects = sorted({row["subject"] for row in rows})
    high = {row["first"]: subjects.index(row["subject"]) for row in rows}
    found = {}
    for role in task.outputs:
        rng, count = np.random.default_rng(0), 2 * WIDTH if role == "coordinates" else NUM_FEATURES
        table = []
        for passage in made.local[task.inputs["passages"]].build().to_pylist():
            means = rng.uniform(0.1, 0.2, count)
            if role.startswith("features/") and passage["passage_id"] in high:
                means[high[passage["passage_id"]]] = 1.0
            row = {"passage_id": passage["passage_id"], "part": "all", "num_tokens": 10, "l0": 4.0, "status": "ok"}
            row |= {"features": np.arange(count), "means": means.astype(np.float32)}
            known = not role.startswith("random/")
            table.append(row | {"squared_error": 1.0 if known else None, "squared_norm": 4.0})
        found[role] = t.table_from_rows(table, t.FEATURES).replace_schema_metadata(
            t.features_schema(count, role).metadata
        )
    return found


def recovered_of(task: Any) -> dict[str, pa.Table]:
    """Return measures of the loss for each role: .75 with a reconstruction."""
    lost = Measure.null("ce.loss_recovered", Status.NOT_IMPLEMENTED, "no reconstruction")
    kept, dense = Measure.of("ce.loss_recovered", 0.75, (0.7, 0.8), n=32), Measure.of("ce.dense_share", 0.125)
    return {role: measures_table([lost if role.startswith("random/") else kept, dense]) for role in task.outputs}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunFolder]:
    """Return the folder of a run whose features are made by hand, and whose contrasts the prober computes."""

    def make(made: CeBenchPlan, without: str = "") -> RunFolder:
        artifacts, service = Artifacts(open_store(str(tmp_path / "store"))), create()
        for key, step in made.local.items():
            built = step.build()
            artifacts.write_table(key, built) if isinstance(built, pa.Table) else artifacts.write(key, built)
        failures = {}
        for task in made.tasks.values():
            if task.kind == without:
                failures[task.task_id] = Failure(task.task_id, task.kind, Status.FAILED, "the worker was lost")
            elif task.kind in (FEATURES_OF.kind, RECOVERED.kind):
                found = features_of(made, task) if task.kind == FEATURES_OF.kind else recovered_of(task)
                for role, table in found.items():
                    artifacts.write_table(task.outputs[role], table)
            else:
                service.handlers[task.kind](task, TaskIO(task, artifacts))
        folder = RunFolder.create(tmp_path / "runs", made.config)
        folder.write_model(MODEL)
        for name, table in assemble(made, artifacts, failures, folder.id).items():
            folder.write_table(name, table)
        folder.write_table("failures", pa.Table.from_pylist([]))
        return folder

    return make


def figures(folder: RunFolder, table: str = "results") -> dict[tuple[str, str], Any]:
    return {(row["entrant"], row["metric"]): row for row in folder.read_table(table).to_pylist()}


def test_rows_have_the_scores_of_every_entrant_and_two_of_size(
    run: Callable[..., RunFolder], saes: Path, stories: str
) -> None:
    folder = run(plan_of(saes / "one", stories=stories, protocol="published"))
    found = figures(folder)
    score = {name: found[name, "ce.interpretability"]["value"] for name in ("one", "one random", "coordinates 3")}
    assert score["one"] > score["one random"] and score["one"] > score["coordinates 3"]
    assert found["one", "ce.held_out"]["value"] == 1.0
    assert (found["one", "ce.minus_l0"]["value"], found["one", "ce.log_width"]["value"]) == (-4.0, 3.0)
    assert found["one random", "ce.unexplained_variance"]["status"] == Status.NOT_IMPLEMENTED
    assert found["one random", "ce.loss_recovered"]["status"] == Status.NOT_IMPLEMENTED
    assert [found[name, "ce.loss_recovered"]["value"] for name in ("one", "coordinates 3")] == [0.75, 0.75]
    assert {found[name, "ce.dense_share"]["value"] for name in score} == {0.125}
    published = figures(folder, "published")
    assert ("one", "ce.loss_recovered") not in published
    assert published["one", "ce.contrastive"]["value"] == pytest.approx(
        found["one", "ce.contrastive"]["value"] * NUM_FEATURES**0.5
    )
    paper = sum(published["one", f"ce.{name}"]["value"] for name in ("contrastive", "independent")) - 0.25 * 4
    assert published["one", "ce.paper"]["value"] == pytest.approx(paper)
    assert ("one", "ce.paper") not in found
    strongest = {
        row["subject"]: row["features"][0]
        for row in folder.read_table("subjects").to_pylist()
        if row["entrant"] == "one"
    }
    assert {name: row["feature"] for name, row in strongest.items()} == {name: n for n, name in enumerate(SUBJECTS)}
    ranked = {row["metric"] for row in folder.read_table("boards").to_pylist()}
    assert ranked == {"ce.interpretability", "ce.held_out", "ce.minus_l0", "ce.log_width"}


def test_features_are_listed_by_subject_and_subjects_by_feature(
    run: Callable[..., RunFolder],
    saes: Path,
    stories: str,
    driver: Callable[..., CompletedProcess[str]],
    environment: dict[str, str],
) -> None:
    """Feature n is 1 on the high stories of subject n, and drawn from .1 to .2 on all others."""
    folder = run(plan_of(saes / "one", saes / "two", stories=stories))
    names = {(row["autoencoder"], row["subject"]) for row in folder.read_table("features").to_pylist()}
    assert names == {(name, subject) for name in ("one", "two") for subject in SUBJECTS}
    where = ("--output", str(folder.path.parent))

    def listed(*arguments: str) -> list[dict[str, Any]]:
        done = driver(environment, "features", folder.id, *arguments, *where, "--json")
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        assert [row["z"] for row in rows] == sorted((row["z"] for row in rows), reverse=True)
        return rows

    by_feature = listed("--feature", "1", "--sae", "one", "--top", "0")
    assert by_feature[0]["subject"] == "speed" and len(by_feature) == 3
    assert by_feature[0]["first"] == 1.0 and 0.8 < by_feature[0]["difference"] < 0.9
    by_subject = listed("--subject", "trust", "--top", "2")
    assert [(row["autoencoder"], row["feature"]) for row in by_subject] == [("one", 2), ("two", 2)]
    assert len(listed()) == 20
    shown = driver(environment, "features", folder.id, "--subject", "calm", *where).stdout
    assert "mean, high" in shown and "1.0000" in shown
    for arguments, reason in (
        (("--feature", "1"), "--feature 1: of which autoencoder? Give --sae with one of one, two"),
        (("--feature", "99", "--sae", "one"), "feature 99 differs between the stories of none of the 3 subjects"),
        (("--subject", "trusts"), "did you mean trust"),
        (("--sae", "ones"), "did you mean one"),
    ):
        done = driver(environment, "features", folder.id, *arguments, *where)
        assert done.returncode == 2 and reason in done.stderr and "Traceback" not in done.stderr, done.stderr
    (table,) = part_of(page_of(folder), "features").blocks
    assert "calm (high, z " in str(table)


def test_a_run_of_an_earlier_version_has_a_page_without_features(
    run: Callable[..., RunFolder], saes: Path, stories: str, driver: Any, environment: dict[str, str]
) -> None:
    folder = run(plan_of(saes / "one", stories=stories))
    folder.file("features.parquet").unlink()
    assert "features" not in {part.anchor for part in page_of(folder).parts}
    done = driver(environment, "features", folder.id, "--output", str(folder.path.parent))
    assert done.returncode == 2 and "has no features.parquet yet; `poolbench-driver run` finishes it" in done.stderr


def test_the_page_names_the_best_its_limits_and_a_subject(
    run: Callable[..., RunFolder], saes: Path, stories: str
) -> None:
    folder = run(plan_of(saes / "one", saes / "two", stories=stories, protocol="published"))
    page = page_of(folder)
    html, markdown = rendered(page)
    answer = page.answer.text
    assert answer.startswith("one scores highest, and 1 more cannot be distinguished from it.")
    assert "All 2 autoencoders beat random directions of equal width and L0" in answer
    assert [line.cells[0].text for line in page.board.lines if line.is_tied] == ["one", "two"]
    assert "<em>one</em> scores highest" in html and "<mark>very " in html and "<svg " in html
    assert part_of(page, "published").blocks and "| calm | " in markdown
    assert "By the published definition, never ranked with the board" in markdown
    (row,) = folder.rows("results", metric="ce.interpretability", entrant="two")
    *_, stories, subjects = opened(folder)[f"cells/{row['cell_id']}"]
    clearest = max(folder.rows("subjects", entrant="two"), key=lambda subject: subject["contrastive"])
    assert stories.heading == f"{clearest['subject']}, as two sees it"
    (pair,) = folder.rows("stories", subject=clearest["subject"])
    assert [story.text for _, story in stories.blocks[0].texts] == [pair["first"], pair["second"]]  # type: ignore[union-attr]
    assert subjects.heading == "Subjects, as two sees them"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """Return the services of a cluster with an extractor, whose store is that of `run`."""
    with serving({"extractor": load_service("extractor")}) as address:
        for name, value in cluster_environment(address, tmp_path).items():
            monkeypatch.setenv(name, value)
        yield Services(ClusterSettings.load())


def test_stories_open_with_their_strongest_features_on_the_tokens(
    run: Callable[..., RunFolder], saes: Path, stories: str, cluster: Services
) -> None:
    """Activations are those of Transformers and NumPy; without a cluster nothing opens."""
    folder = run(plan_of(saes / "one", stories=stories))
    (row,) = folder.rows("results", metric="ce.interpretability", entrant="one")
    subject = max(folder.rows("subjects", entrant="one"), key=lambda subject: subject["contrastive"])
    path = f"tokens/{row['cell_id']}/{subject['subject']}"
    cell = f"/api/runs/{folder.id}/cells/{row['cell_id']}"
    views = [
        TestClient(Console(RunSource(folder.path.parent), services).application(), base_url="http://127.0.0.1")
        for services in (None, cluster)
    ]
    assert [f'"opens":"{path}"' in view.get(cell).text.replace(": ", ":") for view in views] == [False, True]
    refused, answer = (view.get(f"/api/runs/{folder.id}/{path}") for view in views)
    assert refused.status_code == 404 and "open its console" in refused.json()["error"]["message"]
    features = [feature["feature"] for feature in subject["features"]][:5]
    (pair,) = folder.rows("stories", subject=subject["subject"])
    expected = [activations_by_hand(saes / "one", pair[side])[:, features] for side in ("first", "second")]
    most = np.max(np.concatenate(expected), axis=0)
    for part, side, values_TF in zip(answer.json()["parts"], ("first", "second"), expected, strict=True):
        copies, table = part["blocks"]
        name = "high" if side == "first" else "low"
        assert part["heading"] == f"{subject['subject']}, {name}, by features of one"
        assert [column["head"] for column in table["columns"]] == ["token", *(f"feature {n}" for n in features)]
        cells = [[cell["value"] for cell in line["cells"][1:]] for line in table["lines"]]
        tokens = np.array([values for values in cells if None not in values])
        np.testing.assert_allclose(tokens, values_TF, rtol=1e-4, atol=1e-5)
        for (caption, copy), feature, values_T, reach in zip(copies["texts"], features, values_TF.T, most, strict=True):
            assert copy["text"] == pair[side] and caption == f"feature {feature}, at most {values_T.max():.4f}"
            shades = [value for value in copy.get("shades", []) if value]
            assert max(shades, default=0) == (min(8, 1 + int(8 * values_T.max() / reach)) if values_T.any() else 0)
            assert len(shades) == np.count_nonzero(values_T)


def activations_by_hand(folder: Path, text: str) -> np.ndarray:
    """Return the features of block 3 of the demo model, with its hidden states from Transformers, in float64."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL.ref.source)
    model = AutoModelForCausalLM.from_pretrained(MODEL.ref.source, dtype=torch.float32)
    inputs = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
    special = inputs.pop("special_tokens_mask")[0].bool()
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states[4][0]
    tensors = {name: value.astype(np.float64) for name, value in load_file(folder / "sae.safetensors").items()}
    return np.maximum(states[~special].double().numpy() @ tensors["W_enc"] + tensors["b_enc"], 0)


def test_only_autoencoders_open_stories_and_sensitive_subjects_none(
    run: Callable[..., RunFolder], saes: Path, tmp_path: Path
) -> None:
    rows = [pair(subject, row) for subject in ("toxicity", "calm") for row in range(4)]
    folder = run(plan_of(saes / "one", stories=put_stories(tmp_path / "own.jsonl", rows), evidence=5))
    assert [row["subject"] for row in folder.rows("stories")] == ["calm"]
    parts = opened(folder)
    for name, paths in (("one", 5), ("one random", 0), ("coordinates 3", 0)):
        (row,) = folder.rows("results", metric="ce.interpretability", entrant=name)
        behind = parts[f"cells/{row['cell_id']}"]
        assert "very toxicity" not in str(behind) and "toxicity" in str(behind)
        assert str(behind).count(f"tokens/{row['cell_id']}/calm") == paths
        subject = "toxicity" if name == "one" else "calm"
        with pytest.raises(NotFoundError, match=f"no stories of '{subject}' with features of {name}"):
            tokens_of(folder, row["cell_id"], subject, Services(ClusterSettings(broker_url="", store_uri="")))


def test_entrants_are_told_apart_over_the_subjects_that_their_score_is_a_mean_of(
    run: Callable[..., RunFolder], saes: Path, stories: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(plan_of(saes / "one", stories=stories))
    units = SUITES.get("ce-bench").units(folder.tables)
    assert units is not None and units.name == "subject"
    for name, by_subject in units.values.items():
        assert figures(folder)[name, "ce.interpretability"]["value"] == pytest.approx(fmean(by_subject.values()))
    assert (
        page_of(folder)
        .answer.sentences[-1]
        .startswith(
            "By their values 3 subjects tell the first two apart on ce.interpretability (one and one random; a paired "
        )
    )
    leaderboard([folder.id], folder.path.parent, power=True, as_json=True)
    first, second = json.loads(capsys.readouterr().out)
    assert (first["block"], first["n"], first["items"], second["next"]) == ("subject", 3, [], "coordinates 3")


def test_texts_and_names_are_escaped(run: Callable[..., RunFolder], saes: Path, tmp_path: Path) -> None:
    rows = [
        {**pair(f"<u>{subject}", row), "story1": f"{row} <b>&amp; <subject><i><u>{subject}</i></subject> $x_1$"}
        for subject in SUBJECTS
        for row in range(2)
    ]
    file = put_stories(tmp_path / "own.jsonl", rows)
    (saes / "one").rename(saes / "<s>$x_1$")
    made = plan_of(saes / "<s>$x_1$", stories=file)
    page = write_report(run(made)).read_text("utf-8")
    assert "<b>" not in page.partition("<header>")[2].replace("<b>CE-Bench</b>", "").replace("<b>!</b>", "")
    assert "<u>" not in page and "<i>" not in page and "<s>" not in page
    assert "<mark>&lt;i&gt;&lt;u&gt;" in page


def test_a_run_is_exported_and_its_card_says_that_it_shows_stories(
    run: Callable[..., RunFolder], saes: Path, stories: str, tmp_path: Path, driver: Any, environment: dict[str, str]
) -> None:
    folder = run(plan_of(saes / "one", stories=stories))
    folder.write_state("done")
    write_report(folder)
    folder.write_manifest(config_hash=folder.config().config_hash())
    open_store(str(tmp_path / "store")).put(f"runs/{folder.id}/keys.json.gz", encode_keys([]))
    where = ("--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "out"))
    ended = driver(environment, "export", "run", "latest", *where)
    assert ended.returncode == 0, ended.stderr
    card = (tmp_path / "out/README.md").read_text("utf-8")
    assert "the suite ce-bench" in card and "the examples that the report shows" in card


def test_one_subject_has_a_contrast_and_no_score(run: Callable[..., RunFolder], saes: Path, tmp_path: Path) -> None:
    file = put_stories(tmp_path / "own.jsonl", [pair("calm", row) for row in range(3)])
    made = plan_of(saes / "one", stories=file)
    assert any("only the subject 'calm'" in note for note in made.facts.notes)
    folder = run(made)
    found = figures(folder)
    assert found["one", "ce.interpretability"]["status"] == Status.TOO_FEW
    assert found["one", "ce.contrastive"]["status"] == Status.OK
    page = page_of(folder)
    html, _ = rendered(page)
    assert page.answer.text == "No autoencoder has a score." and page.answer.text in html
    problems = [problem.text for problem in page.problems]
    assert any(text.startswith("one: no score, too_few") for text in problems)
    assert any("only the subject" in text for text in problems)


def test_a_failed_comparison_is_a_row_with_its_reason(run: Callable[..., RunFolder], saes: Path, stories: str) -> None:
    folder = run(plan_of(saes / "one", stories=stories), without=CONTRAST.kind)
    row = figures(folder)["one", "ce.interpretability"]
    assert (row["value"], row["status"], row["reason"]) == (None, Status.FAILED, "the worker was lost")
    assert "the worker was lost" in write_report(folder).read_text("utf-8")


def test_the_board_has_the_loss_that_is_recovered_and_dense_features(
    run: Callable[..., RunFolder], saes: Path, stories: str
) -> None:
    folder = run(plan_of(saes / "one", stories=stories))
    cells = cells_of(page_of(folder).board)
    found = {name: (row["loss recovered"], row["dense"]) for name, row in cells.items()}
    assert found == {"one": ("0.750", "0.125"), "coordinates 3": ("0.750", "0.125"), "one random": ("", "0.125")}


def test_a_failed_loss_is_a_reason_and_the_scores_stay(run: Callable[..., RunFolder], saes: Path, stories: str) -> None:
    folder = run(plan_of(saes / "one", stories=stories), without=RECOVERED.kind)
    found = figures(folder)
    row = found["one", "ce.loss_recovered"]
    assert (row["value"], row["status"], row["reason"]) == (None, Status.FAILED, "the worker was lost")
    assert found["one", "ce.interpretability"]["value"] is not None and ("one", "ce.dense_share") not in found


def test_runs_on_the_same_stories_share_a_board(
    run: Callable[..., RunFolder], saes: Path, stories: str, tmp_path: Path
) -> None:
    folders = [run(plan_of(saes / name, stories=stories)) for name in ("one", "two")]
    page = SUITES.get("ce-bench").joined([folder.finished() for folder in folders])
    assert page is not None
    rendered(page)
    assert sorted(texts[0] for texts in texts_of(page.board)) == [
        "coordinates 3", "one", "one random", "two", "two random",
    ]  # fmt: skip
    other = put_stories(tmp_path / "other.jsonl", [pair(subject, 9) for subject in SUBJECTS])
    with pytest.raises(ConfigError, match="different stories"):
        SUITES.get("ce-bench").joined(
            [each.finished() for each in (folders[0], run(plan_of(saes / "two", stories=other)))]
        )


def entrant(name: str, values: list[float], kind: str = "autoencoder", **others: float) -> Entrant:
    """Return an entrant with a score for each subject."""
    score = {"value": float(np.mean(values)), "status": "ok", "ci_low": None, "ci_high": None, "coverage": 1.0}
    rows = {metric: {**score, "value": value} for metric, value in others.items()}
    subjects = {
        str(n): {"subject": str(n), "interpretability": value, "contrastive": value, "held_out": value, "features": []}
        for n, value in enumerate(values)
    }
    null_of = name.removesuffix(" random") if kind == "random" else None
    return Entrant(name, kind, 3, "topk", {"ce.interpretability": score, **rows}, subjects, null_of=null_of)


def test_an_entrant_beats_another_where_the_paired_interval_is_above_0() -> None:
    """Both have the same spread over subjects, and one is .1 above the other in each."""
    spread = [0.1, 0.9, 0.5, 0.7]
    low, high = entrant("low", spread), entrant("high", [value + 0.1 for value in spread])
    assert high.beats(low) and not low.beats(high) and not high.beats(high)
    mixed = entrant("mixed", [value + step for value, step in zip(spread, (0.3, -0.2, 0.3, -0.2), strict=True)])
    assert not mixed.beats(low) and not entrant("single", [0.9]).beats(low)


def test_the_answer_says_how_many_beat_what_was_not_trained() -> None:
    nulls = [entrant("b random", [0.2] * 4, "random"), entrant("coordinates 3", [0.3] * 4, "coordinates")]
    best, weak = entrant("a", [0.8, 0.9, 0.8, 0.9]), entrant("b", [0.25] * 4)
    view = View("demo", "own", [best, weak, *nulls, entrant("a random", [0.1] * 4, "random")])
    assert Answer(view.headline()).text.startswith("a scores highest. 1 of 2 autoencoders beat random directions")
    assert view.tied == {"a"}
    alone = View("demo", "own", [best, *nulls, entrant("a random", [0.1] * 4, "random")])
    assert Answer(alone.headline()).text.startswith("a beats random directions")
    assert Answer(View("demo", "own", nulls).headline()).text == "No autoencoder has a score."


def test_a_score_that_the_same_side_reaches_is_said_not_to_come_from_the_contrast() -> None:
    flat = entrant("a", [0.8] * 4, **{"ce.interpretability.excess": 0.01})
    (problem, *_) = View("demo", "own", [flat, entrant("a random", [0.1] * 4, "random")]).problems()
    assert problem.text.startswith("Nothing shows that the score comes from the contrast") and "0.010" in problem.text


def test_the_share_of_pairs_in_one_order_by_hand() -> None:
    """Of the three pairs, one is in the same order, one in the other, and one is tied in the second score."""
    found = [entrant(str(n), [0.0], x=x, y=y) for n, (x, y) in enumerate([(1, 1), (2, 2), (3, 1)])]
    assert agreement(found, "x", "y") == pytest.approx((1 + 0 + 0.5) / 3)
    assert agreement(found[:1], "x", "y") is None


def test_marks_that_overlap_or_touch_the_ends() -> None:
    marks = [(0, 2), (1, 3), (4, 5)]
    assert pieces(Passage("ab<d&", marks)) == [("ab", True), ("<", True), ("d", False), ("&", True)]
    assert pieces(Passage("<a>")) == [("<a>", False)]


@pytest.mark.parametrize("settings", [{"metrics": ("d1",)}, {"strategies": ("A1_mean",)}, {"saes": ()}])
def test_settings_of_other_suites_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises((PoolbenchError, ValueError)):
        CeBenchConfig(suite="ce-bench", **settings)
