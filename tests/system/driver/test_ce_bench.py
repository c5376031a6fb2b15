"""The suite ce-bench with contrasts that the prober computes: rows, features, page, stories, export, joined runs."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from driver.tests.page_reader import opened, part_of, rendered, tables_of, texts_of
from driver.tests.run_folders import written
from driver.tests.submitted import require_without_scores, submitted
from driver.tests.suites import test_ce_bench as base
from driver.tests.suites.test_ce_bench import (
    MODEL,
    NUM_FEATURES,
    SUBJECTS,
    WIDTH,
    pair,
    plan_of,
    put_sae,
    put_stories,
)
from driver.tests.suites.test_ce_bench_concepts import ONE_TRAINING
from safetensors.numpy import load_file
from starlette.testclient import TestClient
from tests.servers.services import cluster_environment, serving
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.contracts import tables as t
from poolbench.contracts.measures import Measure, measures_table
from poolbench.errors import ConfigError, NotFoundError
from poolbench.settings import ClusterSettings
from poolbench.statuses import Status
from poolbench.steps.extractor import FEATURES_OF, RECOVERED
from poolbench.steps.prober import CONTRAST
from poolbench.storage import Artifacts, open_store
from poolbench.worker.service import load_service
from poolbench.worker.taskio import TaskIO
from poolbench_driver.assemble import assemble
from poolbench_driver.cli.runs import leaderboard
from poolbench_driver.cluster.services import Services
from poolbench_driver.console.app import Console
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.evidence import tokens_of
from poolbench_driver.records import Run, Runs
from poolbench_driver.records.folder import create_run, write_model
from poolbench_driver.report.making import page_of, write_report
from poolbench_driver.series import SeriesBoard
from poolbench_driver.stages.failure import Failure
from poolbench_driver.suites.ce_bench.plan import CeBenchPlan
from poolbench_prober.service import create

saes, stories = base.saes, base.stories


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
def run(tmp_path: Path) -> Callable[..., Run]:
    """Return the folder of a run whose features are made by hand, and whose contrasts the prober computes."""

    def make(made: CeBenchPlan, without: str = "") -> Run:
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
        folder = create_run(tmp_path / "runs", made.config)
        write_model(folder, MODEL)
        return written(folder, assemble(made, artifacts, failures, folder.id))

    return make


def figures(folder: Run, table: str = "results") -> dict[tuple[str, str], Any]:
    return {(row["entrant"], row["metric"]): row for row in folder.read_table(table).to_pylist()}


def test_rows_have_the_scores_of_every_entrant_and_two_of_size(
    run: Callable[..., Run], saes: Path, stories: str
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
    run: Callable[..., Run],
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


def test_the_page_names_the_best_its_limits_and_a_subject(run: Callable[..., Run], saes: Path, stories: str) -> None:
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
    run: Callable[..., Run], saes: Path, stories: str, cluster: Services
) -> None:
    """Activations are those of Transformers and NumPy; without a cluster nothing opens."""
    folder = run(plan_of(saes / "one", stories=stories))
    (row,) = folder.rows("results", metric="ce.interpretability", entrant="one")
    subject = max(folder.rows("subjects", entrant="one"), key=lambda subject: subject["contrastive"])
    path = f"tokens/{row['cell_id']}/{subject['subject']}"
    cell = f"/api/runs/{folder.id}/cells/{row['cell_id']}"
    views = [
        TestClient(Console(Runs(folder.path.parent), services).application(), base_url="http://127.0.0.1")
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
    run: Callable[..., Run], saes: Path, tmp_path: Path
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
    run: Callable[..., Run], saes: Path, stories: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(plan_of(saes / "one", stories=stories))
    units = SUITES.get("ce-bench").load().units(folder)
    assert units is not None and units.name == "subject"
    for name, by_subject in units.values.items():
        assert figures(folder)[name, "ce.interpretability"]["value"] == pytest.approx(fmean(by_subject.values()))
    said = page_of(folder).answer.sentences[-1]
    assert said.startswith("3 subjects are ")
    assert " to find a difference of 0.02 in ce.interpretability between the first two (one and one random; a" in said
    leaderboard([folder.id], folder.path.parent, power=True, as_json=True)
    first, second = json.loads(capsys.readouterr().out)
    assert (first["block"], first["n"], first["items"], second["next"]) == ("subject", 3, [], "coordinates 3")


def test_one_subject_has_a_contrast_and_no_score(run: Callable[..., Run], saes: Path, tmp_path: Path) -> None:
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
    assert any(text.startswith("ce.interpretability") and "one" in text and "too_few" in text for text in problems)
    assert any("only the subject" in text for text in problems)


@pytest.mark.parametrize(
    ("kind", "metric", "other"),
    [
        (CONTRAST.kind, "ce.interpretability", "ce.loss_recovered"),
        (RECOVERED.kind, "ce.loss_recovered", "ce.interpretability"),
    ],
)
def test_a_failed_task_is_a_row_with_its_reason_and_the_others_stay(
    run: Callable[..., Run], saes: Path, stories: str, kind: str, metric: str, other: str
) -> None:
    folder = run(plan_of(saes / "one", stories=stories), without=kind)
    row = figures(folder)["one", metric]
    assert (row["value"], row["status"], row["reason"]) == (None, Status.FAILED, "the worker was lost")
    assert figures(folder)["one", other]["value"] is not None
    assert "the worker was lost" in write_report(folder).read_text("utf-8")


def test_a_run_is_submitted_without_its_stories_and_verified(
    run: Callable[..., Run], saes: Path, stories: str, tmp_path: Path
) -> None:
    verdict, tables = submitted(run(plan_of(saes / "one", stories=stories)), tmp_path / "submitted")
    require_without_scores(verdict)
    assert "subjects" in tables and "stories" not in tables


def test_runs_on_the_same_stories_share_a_board(
    run: Callable[..., Run], saes: Path, stories: str, tmp_path: Path
) -> None:
    folders = [run(plan_of(saes / name, stories=stories)) for name in ("one", "two")]
    page = SeriesBoard.of(folders).joined or pytest.fail()
    rendered(page)
    assert sorted(texts[0] for texts in texts_of(page.board)) == [
        "coordinates 3", "one", "one random", "two", "two random",
    ]  # fmt: skip
    other = put_stories(tmp_path / "other.jsonl", [pair(subject, 9) for subject in SUBJECTS])
    with pytest.raises(ConfigError, match="not comparable: dataset "):
        SeriesBoard.of((folders[0], run(plan_of(saes / "two", stories=other))))


def _metadata(seed: Any, **others: Any) -> dict[str, Any]:
    return {"metadata": {"model_name": "demo", "training_tokens": 1000, "seed": seed, **others}}


def test_only_the_seed_may_differ(stories: str, tmp_path: Path) -> None:
    """Of k, layer, tokens, architecture and a missing or unreadable seed, each makes a family of its own."""
    settings = {"a": _metadata(0), "a-s1": _metadata(1)}
    settings["tokens"] = _metadata(2, training_tokens=2000)
    settings["layer"] = {**_metadata(2), "hook_name": "blocks.1.hook_resid_post"}
    settings["k3"], settings["k4"] = ({**_metadata(2), "architecture": "topk", "k": k} for k in (3, 4))
    settings |= {"none": {}, "word": _metadata("one"), "truth": _metadata(True)}
    for number, (name, config) in enumerate(settings.items()):
        put_sae(tmp_path / "saes" / name, number, **config)
    found = {sae.name: (sae.family, sae.seed) for sae in plan_of(tmp_path / "saes", stories=stories).scope.saes}
    assert found["a"][0] == found["a-s1"][0] and (found["a"][1], found["a-s1"][1]) == (0, 1)
    seeded = [found[name][0] for name in ("a", "tokens", "layer", "k3", "k4")]
    assert len(set(seeded)) == 5 and None not in seeded
    assert {found[name] for name in ("none", "word", "truth")} == {(None, None)}


def test_a_family_may_lie_in_several_runs(run: Callable[..., Run], tmp_path: Path) -> None:
    file = put_stories(tmp_path / "own.jsonl", [pair(subject, row) for subject in SUBJECTS for row in range(4)])
    folders = [
        run(plan_of(put_sae(tmp_path / f"own-s{seed}", seed, **_metadata(seed)), stories=file)) for seed in range(2)
    ]
    assert any(ONE_TRAINING in problem.text for problem in page_of(folders[0]).problems)
    page = SeriesBoard.of(folders).joined or pytest.fail()
    assert not any(ONE_TRAINING in problem.text for problem in page.problems)
    (table,) = tables_of(*part_of(page, "seeds").blocks)
    assert texts_of(table)[0][:2] == ["own-s0", "0, 1"]
