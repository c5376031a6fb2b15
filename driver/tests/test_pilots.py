"""plan-data: published figures, pilots from files, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.conftest import invoked
from driver.tests.run_folders import MadeRun

from poolbench.errors import ConfigError, InputError, NotFoundError, UnknownNameError
from poolbench.statuses import RunState
from poolbench_driver.config import RunConfig
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.pilots import compare_pilots, read_pilot
from poolbench_driver.records.folder import create_run, write_state, write_table
from poolbench_driver.statistics.mcnemar import mcnemar_power, mcnemar_size
from poolbench_driver.statistics.training_size import required_training_size

FIRST, SECOND = [0.70, 0.72, 0.71, 0.69, 0.73], [0.82, 0.85, 0.83, 0.80, 0.86]


def planned(*arguments: str) -> dict[str, Any]:
    result = invoked("plan-data", *arguments, "--json")
    assert not result.return_value
    return dict(json.loads(result.stdout, parse_constant=_no_json))


def _no_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def pilot(path: Path, accuracies: list[float]) -> Path:
    path.write_text("seed,accuracy\n" + "".join(f"{seed},{value}\n" for seed, value in enumerate(accuracies)))
    return path


@pytest.fixture
def pilots(tmp_path: Path) -> list[str]:
    return [str(pilot(tmp_path / "a.csv", FIRST)), str(pilot(tmp_path / "b.csv", SECOND))]


def test_of_two_widths_the_larger_counts() -> None:
    answer = planned("--effect", "62/960", "--width", "300", "--width", "4096", "--protocol", "published")
    assert (answer["num_train"], answer["status"], answer["protocol"]) == (95156, "ok", "published")


@pytest.mark.parametrize(("width", "expected"), [(300, 94_003_295), (768, 95_879_257), (4096, 99_225_095)])
def test_the_constants_of_the_published_bound(width: int, expected: int) -> None:
    """Half of the effect is 1e-3, so that the size shows the numerator with six decimals."""
    assert required_training_size(0.002, width, "published") == expected


def test_the_default_is_corrected_and_the_split_is_a_parameter() -> None:
    answer = planned("--effect", "0.1", "--width", "8", "--split", "7:1:2")
    assert answer["num_train"] == required_training_size(0.1, 8, "corrected")
    assert answer["num_total"] == -(-answer["num_train"] * 10 // 7)


def test_power_alone_needs_no_width(pilots: list[str]) -> None:
    shares = ("--p01", "0.0225", "--p10", "0.0025")
    answer = planned(*shares, "--n", "500")
    assert (round(answer["power"]["power"], 4), answer["smallest_n"], answer["status"]) == (0.7976, 503, "ok")
    assert (round(answer["power"]["type_m"], 4), answer["power"]["discordance"]) == (1.1158, "given")
    assert [answer[name] for name in ("width", "num_parameters", "num_train", "num_total")] == [None] * 4
    assert planned(*pilots)["smallest_n"] == planned(*pilots, "--width", "8")["smallest_n"]
    shown = invoked("plan-data", *shares).stdout
    assert shown.startswith("503 test passages have a power of .8") and "width  " not in shown
    assert planned(*shares, "--effect", "0.0201")["smallest_n"] == 503  # nothing to warn of


def test_pilots_are_paired_by_seed(pilots: list[str], tmp_path: Path) -> None:
    records = [{"seed": str(seed), "accuracy": SECOND[seed]} for seed in (3, 1, 4, 0, 2)]
    (tmp_path / "b.json").write_text(json.dumps(records))
    answer = planned(pilots[0], str(tmp_path / "b.json"), "--width", "768", "--protocol", "published")
    assert answer["effect"] == pytest.approx(np.mean(np.subtract(SECOND, FIRST)))
    assert answer["interval"][0] > 0
    assert answer["seeds"]["3"] == pytest.approx(0.11)
    assert answer["num_train"] == required_training_size(answer["effect"], 768, "published")
    assert answer["power"] is None  # nothing says how many test passages there are


def test_independent_errors_are_named_as_such(pilots: list[str]) -> None:
    power = planned(*pilots, "--width", "768", "--n", "200")["power"]
    shares = [((1 - a) * b, a * (1 - b)) for a, b in zip(FIRST, SECOND, strict=True)]
    assert (power["p01"], power["p10"]) == pytest.approx(np.mean(shares, axis=0))
    assert power["discordance"] == "independent"
    assert power["power"] == pytest.approx(np.mean([mcnemar_power(*own, 200).power for own in shares]))


def test_a_collapsed_comparison_is_null(tmp_path: Path) -> None:
    noise = [0.73, 0.70, 0.70, 0.72, 0.71]
    files = [str(pilot(tmp_path / "a.csv", FIRST)), str(pilot(tmp_path / "b.csv", noise))]
    answer = planned(*files, "--width", "768", "--n", "100")
    assert (answer["num_train"], answer["num_total"], answer["status"]) == (None, None, "collapsed")
    assert "includes 0" in answer["reason"]
    with pytest.raises(ConfigError, match="give --n"):
        planned(*files, "--width", "768")
    shown = invoked("plan-data", *files, "--width", "768", "--n", "100")
    assert "none (collapsed)" in shown.stdout
    assert shown.stdout.startswith("No size is recommended: ")


def test_bounds_of_a_hidden_layer_of_selectivities_and_of_code_lengths() -> None:
    arguments = ("--effect", "7/320", "--width", "768", "--protocol", "published")
    assert planned(*arguments)["num_train"] == 801_472
    answer = planned(*arguments, "--hidden", "20")
    assert (answer["num_train"], answer["num_parameters"], answer["hidden"]) == (851_578, 15_401, 20)
    of_code = planned(*arguments, "--criterion", "code-length")["num_train"]
    assert of_code == required_training_size(7 / 320, 768, "published", criterion="code-length")
    shown = invoked("plan-data", *arguments[:4], "--criterion", "control").stdout
    assert "no data set meets" in shown and "which is that of accuracies (without --criterion control)" in shown
    assert "difference of selectivities" in shown


def test_items_show_which_passages_differ(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = {side: rng.random((5, 80)) < share for side, share in (("a", 0.7), ("b", 0.85))}
    for side, correct in truth.items():
        lines = [f"{s},{k},{int(correct[s, k])}" for s in range(5) for k in range(80)]
        (tmp_path / f"{side}.csv").write_text("seed,item,correct\n" + "\n".join(lines))
    answer = planned(str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--width", "8")
    power = answer["power"]
    shares = [((b & ~a).mean(), (a & ~b).mean()) for a, b in zip(truth["a"], truth["b"], strict=True)]
    assert answer["smallest_n"] == mcnemar_size(shares)
    assert [power["p01"], power["p10"], power["n"]] == pytest.approx([*np.mean(shares, axis=0), 80])
    by_seed = [mcnemar_power(*own, 80) for own in shares]
    assert list(power["seeds"].values()) == pytest.approx([own.power for own in by_seed])
    assert power["power"] == pytest.approx(np.mean([own.power for own in by_seed]))
    assert power["type_m"] == pytest.approx(np.mean([own.type_m for own in by_seed]))
    assert power["power"] != pytest.approx(mcnemar_power(*np.mean(shares, axis=0), 80).power, abs=0.01)
    assert power["discordance"] == "counted"


def test_one_seed_is_a_pilot_without_an_interval(tmp_path: Path) -> None:
    files = [str(pilot(tmp_path / name, values[:1])) for name, values in (("a.csv", FIRST), ("b.csv", SECOND))]
    answer = planned(*files, "--width", "768", "--n", "200")
    assert answer["effect"] == pytest.approx(0.12)
    assert (answer["interval"], answer["status"]) == (None, "ok")
    assert answer["power"]["power"] == pytest.approx(mcnemar_power(0.3 * 0.82, 0.7 * 0.18, 200).power)
    shown = invoked("plan-data", *files, "--width", "768", "--n", "200").stdout
    assert "none: the pilots have one seed" in shown and "mean of" not in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("seed,accuracy\n0,.7\n0,.8\n", "seed 0 comes twice"),
        ("seed,accuracy\n0,70\n1,.8\n", "must be a share"),
        ("seed,accuracy\n0,nan\n1,.8\n", "must be a share"),
        ("seed,score\n0,.7\n", "need columns"),
        ("", "is empty"),
        ("seed,item,correct\n0,a,1\n0,a,0\n", "item a comes twice"),
        ("seed,item,correct\n0,a,yes\n", "use 0 or 1"),
        ("seed,item,correct\n0,,1\n", "line 2: item is missing"),
        ("seed,accuracy\nnan,.8\n", "line 2: seed is missing"),
    ],
)
def test_malformed_pilots_are_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "pilot.csv"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        read_pilot(file)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    file = tmp_path / "pilot.csv"
    file.write_text("seed,accuracy\n0,.8\n1,.9\n", "utf-8-sig")
    assert read_pilot(file).accuracies == {"0": 0.8, "1": 0.9}


def test_pilots_that_do_not_pair(tmp_path: Path) -> None:
    five, four = (read_pilot(pilot(tmp_path / f"{n}.csv", FIRST[:n])) for n in (5, 4))
    with pytest.raises(InputError, match="unpaired ids"):
        compare_pilots(five, four)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--effect", ".1"), "--width is missing"),
        (("--p01", ".2", "--p10", ".1", "--hidden", "20"), "--width is missing"),
        (("--width", "8"), "nothing to plan for"),
        ((), "nothing to plan for"),
        (("--effect", "1.5", "--width", "8"), "from -1 to 1"),
        (("--effect", ".1", "--width", "8", "--protocol", "new"), "published, corrected"),
        (("--effect", ".1", "--width", "8", "--split", "4:x"), "use shares"),
        (("--effect", ".1", "--width", "8", "--split", "0:1"), "positive shares"),
        (("--width", "8", "--p01", ".1"), "belong together"),
        (("--width", "8", "--width", "-3", "--effect", ".1"), "--width -3"),
        (("--width", "8", "--effect", ".1", "--alpha", "nan"), "--alpha nan"),
        (("--effect", ".3", "--width", "8", "--p01", ".0225", "--p10", ".0025", "--n", "9"), "two comparisons"),
        (("--width", "8", "--effect", ".1", "--split", "1e-308:1e308"), "millionth"),
        (("--width", "8", "--effect", "nan"), "a number or a fraction"),
        (("--width", "8", "--effect", "1/0"), "a number or a fraction"),
        (("--width", "8", "--effect", "1e999"), "from -1 to 1"),
        (("--effect", ".1", "--width", "8", "--n", "500"), "which also needs --p01 and --p10"),
        (("only-one.csv", "--width", "8"), "two pilot files"),
        (("a.csv", "b.csv", "--width", "8", "--effect", ".1"), "not both"),
        (
            ("a.csv", "b.csv", "--width", "8", "--criterion", "control"),
            "give --effect, the difference of selectivities",
        ),
        (("--effect", ".1", "--width", "8", "--n", "9", "--criterion", "code-length"), "are of accuracies"),
        (("--effect", ".1", "--width", "8", "--criterion", "new"), "accuracy, control, code-length"),
        (("some-run", "--criterion", "control"), "--criterion: the answers of runs say this"),
        (("nowhere.csv", "nowhere.csv", "--width", "8"), "no such file"),
        (("--width", "8", "--p01", ".9", "--p10", ".2", "--n", "10"), "probabilities"),
        (("--width", "8", "--p01", ".9", "--p10", ".2"), "probabilities"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises((ConfigError, InputError), match=message):
        planned(*arguments)


def test_a_rounded_difference_draws_a_warning() -> None:
    arguments = ("--width", "768", "--protocol", "published", "--effect")
    rounded = planned(*arguments, ".1313")
    assert (rounded["num_train"], rounded["if_rounded"]) == (22246, [22229, 22263])
    result = invoked("plan-data", *arguments, ".1313")
    assert "bounds of 22,229 to 22,263; write a fraction" in result.stderr
    assert "if_rounded" not in planned(*arguments, ".13125") and "if_rounded" not in planned(*arguments, ".05")


def test_pilots_that_differ_as_often_one_way_as_the_other(tmp_path: Path) -> None:
    """Equal shares of discordant items have no power at all; that --n is missing would be no help."""
    for side, rows in (("a", ["0,x,1", "0,y,0", "1,x,1", "1,y,1"]), ("b", ["0,x,0", "0,y,1", "1,x,1", "1,y,1"])):
        (tmp_path / f"{side}.csv").write_text("seed,item,correct\n" + "\n".join(rows))
    answer = planned(str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--width", "8", "--n", "50")
    assert (answer["num_train"], answer["status"]) == (None, "no_effect")


def test_seeds_that_contradict_the_effect_do_not_support_it(tmp_path: Path) -> None:
    """Each seed alone is decided, in opposite directions: the second has no power, and the comparison is collapsed."""
    for side, rows in (("a", ["0,x,1", "1,x,0", "1,y,0", "1,z,1"]), ("b", ["0,x,0", "1,x,1", "1,y,0", "1,z,1"])):
        (tmp_path / f"{side}.csv").write_text("seed,item,correct\n" + "\n".join(rows))
    answer = planned(str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--width", "8", "--n", "50")
    assert answer["effect"] == pytest.approx(-1 / 3)
    assert answer["power"]["seeds"] == {"0": 1.0, "1": 0.0} and answer["power"]["power"] == 0.5
    assert answer["power"]["type_m"] == mcnemar_power(0, 1, 50).type_m
    assert (answer["num_train"], answer["status"]) == (None, "collapsed")
    assert "the power is 0.50" in answer["reason"]


def holmes_run(output: Path, seed: int, right: dict[str, int]) -> str:
    """A finished run with one set of 100 instances, of which each entrant has the first ones right."""
    folder = create_run(output, load_run_config(None, {"suite": "holmes", "preset": "demo", "seed": seed}))
    write_state(folder, RunState.DONE)
    rows = [
        {"set": "pos", "entrant": entrant, "instance_id": f"i{item}", "truth": "a", "predicted": "ab"[item >= count]}
        for entrant, count in right.items()
        for item in range(100)
    ]
    write_table(folder, "predictions", pa.Table.from_pylist(rows))
    write_table(folder, "sets", pa.Table.from_pylist([{"set": "pos", "task": "classes"}]))
    return folder.id


def test_runs_are_pilots(tmp_path: Path) -> None:
    one, two = holmes_run(tmp_path, 0, {"mean": 60, "last": 75}), holmes_run(tmp_path, 1, {"mean": 90})
    arguments = ("--output", str(tmp_path))
    answer = planned(one, *arguments)
    assert (answer["first"], answer["second"]) == (f"{one}: last", f"{one}: mean")
    (row,) = answer["comparisons"]
    assert (row["on"], row["n"], row["p01"], row["p10"]) == ("pos", 100, 0.0, 0.15)
    # The pair was picked after ranking: planned is .02 at the discordance of .15, and not the observed difference.
    assert row["planned"] == 0.02 and row["power"] == pytest.approx(mcnemar_power(0.085, 0.065, 100).power)
    assert row["smallest_n"] == mcnemar_size([(0.085, 0.065)])
    (wide,) = planned(one, "--difference", ".3", *arguments)["comparisons"]  # at least as many differ
    assert wide["power"] == pytest.approx(mcnemar_power(0.3, 0.0, 100).power)
    of_two = planned(one, two, "--compare", "mean", *arguments)
    assert (of_two["second"], of_two["comparisons"][0]["difference"]) == (f"{two}: mean", pytest.approx(0.3))
    shown = invoked("plan-data", one, *arguments)
    assert "would have a power of .8 or more with the test items at hand on 0 of 1" in shown.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--with", "last"), "compared with itself"),
        (("--compare", "maen"), "unknown entrant .*mean"),
        (("--width", "8"), "--width: the answers of runs say this"),
        (("--difference", "0"), "--difference 0: .* above 0, up to 1"),
        (("latest", "latest"), "one run or two"),
        (("v1.2-planted-0",), "no run 'v1.2-planted-0'"),
    ],
)
def test_what_cannot_be_compared_of_runs(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    run = holmes_run(tmp_path, 0, {"mean": 60, "last": 75})
    with pytest.raises((ConfigError, NotFoundError, UnknownNameError), match=message):
        planned(run, *arguments, "--output", str(tmp_path))


def test_concepts_are_compared_by_the_probe_scores_of_their_passages() -> None:
    rows = [
        {"concept": "hedging", "strategy": "A1_mean", "layer": 2, "passage_id": name, "label": label, "score": score}
        for name, label, score in (("p", 1, 0.3), ("q", 0, -2.0), ("r", 0, 0.1))
    ]
    run = MadeRun("made", RunConfig(), {"passage_scores": pa.Table.from_pylist(rows)})
    answers = SUITES.get("poolbench").load().answers(run)
    assert answers == {"hedging": {"A1_mean layer 2": {"p": True, "q": True, "r": False}}}


def test_a_suite_may_keep_no_answers(tmp_path: Path) -> None:
    run = create_run(tmp_path, load_run_config(None, {"suite": "humanoid", "preset": "demo"}))
    with pytest.raises(ConfigError, match="humanoid keep no answers"):
        planned(run.id, "--output", str(tmp_path))
