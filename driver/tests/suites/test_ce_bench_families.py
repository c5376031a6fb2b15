"""Families of autoencoders in the suite ce-bench: the same training with several seeds, by hand and in a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driver.tests.page_reader import part_of, tables_of, texts_of
from driver.tests.suites import test_ce_bench as base
from driver.tests.suites.test_ce_bench import SUBJECTS, pair, plan_of, put_sae, put_stories

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.records import RunFolder
from poolbench_driver.report import page_of
from poolbench_driver.suites.ce_bench.families import Entrant, families_of
from poolbench_driver.suites.ce_bench.view import View

run, stories = base.run, base.stories
ONE_TRAINING = "the figures of one training say nothing about another"


def entrant(name: str, family: str | None, seed: int | None, score: float | None, **sparse: float | None) -> Entrant:
    """Return an autoencoder with one score for all figures; `k1` is the mean of its sparse probes of one feature."""
    metrics = ("ce.interpretability", "ce.contrastive", "ce.held_out", "ce.unexplained_variance")
    row = {"value": score, "status": "ok" if score is not None else "too_few", "coverage": 1.0, "reason": ""}
    columns = ("interpretability", "contrastive", "held_out")
    subjects = {str(n): {"subject": str(n), **dict.fromkeys(columns, score)} for n in range(3)}
    means = {int(k[1:]): value for k, value in sparse.items()}
    return Entrant(name, "autoencoder", 3, "topk", dict.fromkeys(metrics, row), subjects, family, seed, sparse=means)


def test_mean_deviation_range_and_separated_pairs_by_hand() -> None:
    """a has 1 and 3: mean 2, deviation 1.414. b overlaps a; c lies above both."""
    found = families_of(
        [
            entrant("c", "C", 0, 5.0, k1=0.9), entrant("c-s1", "C", 1, 6.0, k1=0.8),
            entrant("a-s1", "A", 1, 3.0, k1=0.5), entrant("a", "A", 0, 1.0, k1=0.5),
            entrant("b", "B", 0, 2.0, k1=0.6), entrant("b-s2", "B", 2, 4.0, k1=None),
        ]
    )  # fmt: skip
    assert [(each.name, each.seeds) for each in found.all] == [("c", (0, 1)), ("a", (0, 1)), ("b", (0, 2))]
    assert found.all[1].text("interpretability") == "2.000 ± 1.414 (1.000 to 3.000)"
    assert [found.apart(name) for name in found.figures] == [(2, 3)] * 4 + [(1, 1)]
    assert found.all[2].text("sparse probing, k = 1") == "not of all seeds"
    (part,) = found.parts()
    (table,) = tables_of(*part.blocks)
    assert texts_of(table)[-1] == ["pairs that ranges separate", "", *["2 of 3"] * 4, "1 of 1"]
    assert list(found.limits()) == [
        "Over seeds of training, ranges of interpretability separate 2 of 3 pairs of families."
    ]


def test_ranges_that_touch_are_not_separated() -> None:
    touching = [entrant("a", "A", 0, 1.0), entrant("a1", "A", 1, 2.0), entrant("b", "B", 0, 2.0)]
    assert families_of([*touching, entrant("b1", "B", 1, 3.0)]).apart("interpretability") == (0, 1)


def test_one_training_says_nothing_about_another() -> None:
    alone = [entrant("a", "A", 0, 1.0), entrant("b", "B", 0, 2.0), entrant("c", None, None, 3.0)]
    assert families_of(alone).all == [] and list(families_of(alone).parts()) == []
    twins = [Entrant(f"{each.name} random", "random", 3, None, {}, null_of=each.name) for each in alone]
    assert sum(ONE_TRAINING in each.text for each in View("demo", "own", [*alone, *twins]).problems()) == 1
    untrained = View("demo", "own", [entrant("a", "A", 0, None)])
    assert not any(ONE_TRAINING in each.text for each in untrained.problems())


def test_two_trainings_that_say_one_seed_are_no_family() -> None:
    found = families_of([entrant("a", "A", 0, 1.0), entrant("b", "A", 0, 2.0), entrant("c", "A", 1, 2.0)])
    assert not found.all and found.unclear == ["a", "b", "c"]
    assert next(found.limits()).startswith("a, b, c: the same seed")


def _metadata(seed: Any, **others: Any) -> dict[str, Any]:
    return {"metadata": {"model_name": "demo", "training_tokens": 1000, "seed": seed, **others}}


def _families(folder: RunFolder) -> dict[str, tuple[str | None, int | None]]:
    rows = folder.read_table("entrants").to_pylist()
    return {row["entrant"]: (row["family"], row["seed"]) for row in rows if row["kind"] == "autoencoder"}


def test_only_the_seed_may_differ(run: Callable[..., RunFolder], stories: str, tmp_path: Path) -> None:
    """Of k, layer, tokens, architecture and a missing or unreadable seed, each makes a family of its own."""
    settings = {"a": _metadata(0), "a-s1": _metadata(1)}
    settings["tokens"] = _metadata(2, training_tokens=2000)
    settings["layer"] = {**_metadata(2), "hook_name": "blocks.1.hook_resid_post"}
    settings["k3"], settings["k4"] = ({**_metadata(2), "architecture": "topk", "k": k} for k in (3, 4))
    settings |= {"none": {}, "word": _metadata("one"), "truth": _metadata(True)}
    for number, (name, config) in enumerate(settings.items()):
        put_sae(tmp_path / "saes" / name, number, **config)
    found = _families(run(plan_of(tmp_path / "saes", stories=stories)))
    assert found["a"][0] == found["a-s1"][0] and (found["a"][1], found["a-s1"][1]) == (0, 1)
    seeded = [found[name][0] for name in ("a", "tokens", "layer", "k3", "k4")]
    assert len(set(seeded)) == 5 and None not in seeded
    assert {found[name] for name in ("none", "word", "truth")} == {(None, None)}


def test_the_page_and_the_leaderboard_show_a_family(
    run: Callable[..., RunFolder], stories: str, tmp_path: Path
) -> None:
    """Weights are random and features made by hand are those of every seed, so the deviation is 0."""
    for number, name in enumerate(("own", "own-s1", "other")):
        put_sae(tmp_path / "saes" / name, number, **(_metadata(number) if name != "other" else {}))
    folder = run(plan_of(tmp_path / "saes", stories=stories))
    page = page_of(folder)
    score = next(
        row["value"]
        for row in folder.read_table("results").to_pylist()
        if (row["entrant"], row["metric"]) == ("own", "ce.interpretability")
    )
    (table,) = tables_of(*part_of(page, "seeds").blocks)
    assert texts_of(table)[0][:3] == ["own", "0, 1", f"{score:.3f} ± 0.000 ({score:.3f} to {score:.3f})"]
    assert not any(ONE_TRAINING in problem.text for problem in page.problems)


def test_a_family_may_lie_in_several_runs(run: Callable[..., RunFolder], tmp_path: Path) -> None:
    file = put_stories(tmp_path / "own.jsonl", [pair(subject, row) for subject in SUBJECTS for row in range(4)])
    folders = [
        run(plan_of(put_sae(tmp_path / f"own-s{seed}", seed, **_metadata(seed)), stories=file)) for seed in range(2)
    ]
    assert any(ONE_TRAINING in problem.text for problem in page_of(folders[0]).problems)
    page = SUITES.get("ce-bench").joined([folder.finished() for folder in folders]) or pytest.fail()
    assert not any(ONE_TRAINING in problem.text for problem in page.problems)
    (table,) = tables_of(*part_of(page, "seeds").blocks)
    assert texts_of(table)[0][:2] == ["own-s0", "0, 1"]
