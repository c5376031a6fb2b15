"""The preset `card`: its settings and numbers, and what a run says that cannot have all of it."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driver.tests.conftest import Driver

from poolbench.config import MODEL_PRESETS
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.suites.poolbench.published_table import published_table

MODELS = published_table("official").models


@pytest.fixture
def environment(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The cluster of the other tests, with an empty cache of the Hugging Face libraries."""
    return {**environment, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}


CARD = ("run", "--preset", "card", "--model", "llama-3.1-8b")
SMALL = ("run", "--preset", "card", "--model", "demo")


#: Enough of the card where its numbers are not what is asked.
FEW = ("--concepts", "hedging", "--strategies", "A1_mean")


def dry_run(cli: Driver, *arguments: str) -> dict[str, Any]:
    model = () if "--model" in arguments else ("--model", "demo")
    done = cli("run", "--preset", "card", *model, *arguments, "--dry-run", "--display", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.preset)
def test_its_layers_are_those_of_the_reference(model: Any) -> None:
    config = load_run_config(None, {"preset": "card", "model": model.preset})
    assert (config.layers, config.steering_layer) == (model.layers, model.best_layer)
    num_blocks, _ = MODEL_PRESETS[model.preset].shape or (0, 0)
    assert max(model.layers) < num_blocks


def test_layers_that_are_given_win_and_other_models_have_the_default() -> None:
    given = load_run_config(None, {"preset": "card", "model": "gemma-2-9b", "layers": [7]})
    assert (given.layers, given.steering_layer) == ((7,), 28)
    other = load_run_config(None, {"preset": "card", "model": "owner/other"})
    assert (other.layers, other.steering_layer) == (None, 0.5)
    assert load_run_config(None, {"preset": "full", "model": "gemma-2-9b"}).layers is None


def test_a_dry_run_of_the_three_models_sums_them(cli: Driver) -> None:
    models = ",".join(model.preset for model in MODELS)
    found = dry_run(cli, *FEW, "--model", models, "--gpus", "4")
    assert [run["layers"] for run in found["runs"]] == [list(model.layers) for model in MODELS]
    assert found["texts"]["steered"] == 3 * 12 * 10
    assert found["estimate"]["total"]["bytes"]["expected"] > 0
    missing = " | ".join(each["what"] for each in found["missing"])
    for model in ("meta-llama/Llama-3.1-8B", "google/gemma-2-9b", "mistralai/Mistral-7B-v0.3"):
        assert f"weights of {model} in the Hugging Face cache" in missing


def test_the_models_of_the_card_are_named_where_none_is(cli: Driver) -> None:
    done = cli("run", "--preset", "card")
    assert done.returncode == 2
    assert "llama-3.1-8b, gemma-2-9b, mistral-7b-v0.3: name one by --model" in done.stderr


def test_what_is_missing_is_said_before_the_start_with_its_flag(cli: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli(*CARD)
    assert done.returncode == 2
    assert "the run cannot start, 4 missing: weights of meta-llama/Llama-3.1-8B in" in done.stderr
    for what in ("corpus in corpora/published", "texts to train the scorers of all 17", "weights of bert-base-uncased"):
        assert what in done.stderr
    for flag in ("accept its licence", "--corpus", "--scorers published", "--scorers minilm", "--scorer-texts"):
        assert flag in done.stderr
    assert (
        "POOLBENCH_SENSITIVE=true poolbench-driver corpus import hf:nips234678/poolbench corpora/published"
        in done.stderr
    )
    other = cli("run", "--corpus", "hf:owner/data", "--metrics", "d1")
    assert other.returncode == 2 and "`poolbench-driver corpus import hf:owner/data corpora/NAME`" in other.stderr
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**30))
    full = cli(*CARD, "--metrics", "d1")
    assert "GiB of disk at" in full.stderr and "set HF_HOME" in full.stderr


def test_a_wrong_name_is_reported_before_what_is_missing(cli: Driver) -> None:
    done = cli(*CARD, "--strategies", "A1_meen")
    assert done.returncode == 2 and "did you mean A1_mean" in done.stderr and "missing" not in done.stderr


def corpus(folder: Path, *names: str) -> str:
    """A corpus folder that has files of some concepts, without passages for scorers."""
    for name in names:
        (folder / name).mkdir(parents=True)
        for part in ("train_pos", "train_neg", "test_pos", "test_neg"):
            (folder / name / f"{part}.jsonl").write_text("{}\n")
    return str(folder)


def test_concepts_that_the_corpus_lacks_are_named(cli: Driver, tmp_path: Path) -> None:
    folder = corpus(tmp_path / "corpus", "hedging", "contrast")
    asked = ("--corpus", folder, "--concepts", "hedging,toxicity,contrast")
    done = cli(*SMALL, "--scorers", "minilm", *asked)
    assert done.returncode == 2
    assert f"passages of toxicity in {folder}; use --concepts hedging,contrast" in done.stderr
    lacking = f"texts to train the scorers of hedging, contrast on, in {folder}: without them D2 and D3 are null"
    assert lacking in done.stderr and "--scorers published" in done.stderr
    texts = cli(*SMALL, "--scorers", "minilm", *asked, "--scorer-texts", "planted")
    assert "1 missing: passages of toxicity" in texts.stderr
    other = corpus(tmp_path / "other", "contrast")
    (tmp_path / "other" / "contrast" / "scorer_pos.jsonl").write_text("{}\n")
    half = cli(*SMALL, "--scorers", "minilm", *asked, "--scorer-texts", other)
    assert f"texts to train the scorers of hedging on, in {folder} and {other}" in half.stderr


@pytest.mark.parametrize(("scorers", "is_missing"), [("bert", True), ("published", True), ("minilm", False)])
def test_scorers_are_looked_for_where_they_would_be(
    cli: Driver, tmp_path: Path, scorers: str, is_missing: bool
) -> None:
    def missing() -> list[str]:
        found = dry_run(cli, *FEW, "--corpus", "planted", "--scorers", scorers)
        return [each["what"] for each in found["missing"] if each["what"].startswith("scorers: ")]

    assert bool(missing()) == is_missing
    for name in ("bert-base-uncased", "nips234678--poolbench-bert-scorers"):
        (tmp_path / "hub" / f"models--{name}" / "snapshots" / "0").mkdir(parents=True)
    assert missing() == []


def test_a_cluster_elsewhere_may_have_what_this_machine_lacks(driver: Driver, environment: dict[str, str]) -> None:
    away = partial(driver, {**environment, "POOLBENCH_HTTP": "http://192.0.2.1:9"})
    weights = [each["what"] for each in dry_run(away, *FEW, "--model", "llama-3.1-8b")["missing"]]
    assert any(what.startswith("meta-llama/Llama-3.1-8B (") for what in weights), "the extractor there says so"
    assert not any("of this machine" in what and "Llama" in what for what in weights)
    found = dry_run(away, *FEW, "--corpus", "planted")
    assert [each["stops"] for each in found["missing"] if each["what"].startswith("scorers: ")] == [False]


def test_d1_needs_no_scorers(cli: Driver) -> None:
    found = dry_run(cli, *FEW, "--corpus", "planted", "--metrics", "d1")
    assert found["missing"] == []


def test_a_run_whose_texts_are_too_few_for_d2_does_not_start(cli: Driver) -> None:
    few = ("--set", "budget.num_openings=3")
    done = cli("run", "--preset", "demo", *few)
    assert done.returncode == 2 and "4 openings, without which D2 and D3 are null; use --set budget" in done.stderr
    assert cli("run", "--preset", "demo", *few, "--metrics", "d1", "--dry-run").returncode == 0


def test_every_setting_of_the_suite_is_an_option(cli: Driver) -> None:
    found = dry_run(cli, *FEW, "--layer-choice", "nested", "--fold-seeds=1,2")
    assert found["set"] == {"layer_choice": "nested", "fold_seeds": [1, 2]}
    wrong = cli(*SMALL, "--layer-choise", "nested", "--dry-run")
    assert wrong.returncode == 2 and "No such option: --layer-choise" in wrong.stderr
