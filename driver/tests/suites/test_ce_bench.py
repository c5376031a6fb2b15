"""The suite ce-bench: autoencoders by name or folder, stories, the plan, rows from real contrasts, the page."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.conftest import Driver
from driver.tests.run_folders import MadeRun
from safetensors.numpy import save_file

from poolbench.config import resolve_model
from poolbench.errors import ConfigError, CorpusError, InputError, PoolbenchError
from poolbench.steps.extractor import FEATURES_OF, RECOVERED
from poolbench.steps.prober import CONTRAST
from poolbench_corpora.stories import read_stories
from poolbench_driver.contract.page import Answer, Passage
from poolbench_driver.imports.saes import import_saes, places_of
from poolbench_driver.models import ModelInfo
from poolbench_driver.pages.html import pieces
from poolbench_driver.suites.ce_bench import plan as planning
from poolbench_driver.suites.ce_bench.config import CeBenchConfig
from poolbench_driver.suites.ce_bench.families import SaeEntrant
from poolbench_driver.suites.ce_bench.plan import CeBenchPlan, check, plan, resolve
from poolbench_driver.suites.ce_bench.view import CeBenchView, agreement, view_over

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
    assert {task.kind for task in made.tasks.values()} == {FEATURES_OF.kind, RECOVERED.kind, CONTRAST.kind}
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


def test_what_is_imported_is_listed_and_found(
    cli: Driver, saes: Path, stories: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _dead(saes / "dead")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = cli("import", "stories", stories, "--name", "mine")
    assert done.returncode == 0 and "12 pairs of stories in stories/mine.jsonl" in done.stdout
    assert read_stories("mine", folders=(Path("stories"),)).rows.equals(read_stories(stories).rows)
    listed = json.loads(cli("ls", "stories", "--json").stdout)
    assert [row["name"] for row in listed if row["here"]] == ["planted", "real", "mine"]
    done = cli("import", "saes", str(saes))
    assert done.returncode == 0 and "3 autoencoders in saes: low, one, two" in done.stdout and "dead" in done.stderr
    (Path("saes") / "one" / "cfg.json").write_text("{")
    done = cli("ls", "saes", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["low"] == {"name": "low", "architecture": "relu", "d": NUM_FEATURES, "layer": 1, "d_in": WIDTH}
    assert "one" not in rows and "saes/one: cfg.json" in done.stderr and rows["topk-512"]["d"] == 512
    assert outputs(plan_of("two", stories="mine")) == outputs(plan_of(saes / "two", stories=stories))


def test_an_import_of_one_autoencoder_keeps_its_name(saes: Path, tmp_path: Path) -> None:
    assert import_saes(saes / "two", tmp_path / "to").names == ["two"]
    assert (tmp_path / "to/two/cfg.json").read_bytes() == (saes / "two" / "cfg.json").read_bytes()


def entrant(name: str, values: list[float], kind: str = "autoencoder", **others: float) -> SaeEntrant:
    """Return an entrant with a score for each subject."""
    score = {"value": float(np.mean(values)), "status": "ok", "ci_low": None, "ci_high": None, "coverage": 1.0}
    rows = {metric: {**score, "value": value} for metric, value in others.items()}
    subjects = {
        str(n): {"subject": str(n), "interpretability": value, "contrastive": value, "held_out": value, "features": []}
        for n, value in enumerate(values)
    }
    null_of = name.removesuffix(" random") if kind == "random" else None
    return SaeEntrant(name, kind, 3, "topk", {"ce.interpretability": score, **rows}, subjects, null_of=null_of)


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
    view = CeBenchView("demo", "own", [best, weak, *nulls, entrant("a random", [0.1] * 4, "random")])
    assert Answer(view.headline()).text.startswith("a scores highest. 1 of 2 autoencoders beat random directions")
    assert view.tied == {"a"}
    alone = CeBenchView("demo", "own", [best, *nulls, entrant("a random", [0.1] * 4, "random")])
    assert Answer(alone.headline()).text.startswith("a beats random directions")
    assert Answer(CeBenchView("demo", "own", nulls).headline()).text == "No autoencoder has a score."


def joined_run(model: str, values: Mapping[str, float]) -> Any:
    """A run of one autoencoder at layer 3, with its nulls, whose subjects all have one score."""
    kinds = {"a": "autoencoder", "a random": "random", "coordinates 3": "coordinates"}
    identity = {"model": model, "dataset": "own", "dataset_revision": "1", "metric": "ce.interpretability"}
    score = {"status": "ok", "coverage": 1.0, "ci_low": None, "ci_high": None, "concept": None, "params": "{}"}
    columns = ("interpretability", "contrastive", "held_out")
    tables = {
        "results": [{**identity, **score, "entrant": name, "value": values[name]} for name in kinds],
        "published": [{"entrant": ""}],
        "stories": [{"subject": ""}],
        "subjects": [
            {"entrant": name, "subject": str(n), **dict.fromkeys(columns, values[name])}
            for name in kinds
            for n in "123"
        ],
        "entrants": [
            {"entrant": name, "kind": kind, "layer": 3, "null_of": "a" if kind == "random" else None}
            | dict.fromkeys(("architecture", "family", "seed"))
            for name, kind in kinds.items()
        ],
    }
    config = CeBenchConfig(suite="ce-bench", model=model)
    return MadeRun(model, config, {name: pa.Table.from_pylist(rows) for name, rows in tables.items()})


def test_autoencoders_of_joined_models_stand_beside_the_nulls_of_their_own_model() -> None:
    """The autoencoder of m beats its own nulls, though not the coordinates of n."""
    runs = [
        joined_run("m", {"a": 0.5, "a random": 0.2, "coordinates 3": 0.3}),
        joined_run("n", {"a": 0.4, "a random": 0.6, "coordinates 3": 0.7}),
    ]
    view = view_over(runs)
    nulls = {sae.name: {null.name for null in view.nulls_of(sae)} for sae in view.trained}
    assert nulls == {f"{model} a": {f"{model} a random", f"{model} coordinates 3"} for model in "mn"}
    assert Answer(view.headline()).text.startswith("m a scores highest. 1 of 2 autoencoders beat random directions")


def test_a_score_that_the_same_side_reaches_is_said_not_to_come_from_the_contrast() -> None:
    flat = entrant("a", [0.8] * 4, **{"ce.interpretability.excess": 0.01})
    (problem, *_) = CeBenchView("demo", "own", [flat, entrant("a random", [0.1] * 4, "random")]).problems()
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
