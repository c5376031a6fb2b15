"""plan-data: published figures, pilots from files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from poolbench.errors import ConfigError, InputError
from poolbench.statistics import mcnemar_power
from poolbench.statistics.training_size import required_training_size
from poolbench_driver.cli import app
from poolbench_driver.pilots import compare_pilots, read_pilot

FIRST, SECOND = [0.70, 0.72, 0.71, 0.69, 0.73], [0.82, 0.85, 0.83, 0.80, 0.86]


def planned(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["plan-data", *arguments, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return dict(json.loads(result.stdout, parse_constant=_no_json))


def _no_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def pilot(path: Path, accuracies: list[float]) -> Path:
    path.write_text("seed,accuracy\n" + "".join(f"{seed},{value}\n" for seed, value in enumerate(accuracies)))
    return path


@pytest.fixture
def pilots(tmp_path: Path) -> list[str]:
    return [str(pilot(tmp_path / "a.csv", FIRST)), str(pilot(tmp_path / "b.csv", SECOND))]


@pytest.mark.parametrize(("effect", "width", "expected"), [(0.13125, 768, 22263), (63 / 1280, 768, 158315)])
def test_published_sizes(effect: float, width: int, expected: int) -> None:
    answer = planned("--effect", str(effect), "--width", str(width), "--protocol", "published")
    assert (answer["num_train"], answer["status"], answer["protocol"]) == (expected, "ok", "published")


def test_of_two_widths_the_larger_counts() -> None:
    arguments = ("--effect", str(62 / 960), "--width", "300", "--width", "4096", "--protocol", "published")
    assert planned(*arguments)["num_train"] == 95156


def test_the_default_is_corrected_and_the_split_is_a_parameter() -> None:
    answer = planned("--effect", "0.1", "--width", "8", "--split", "7:1:2")
    assert answer["num_train"] == required_training_size(0.1, 8, "corrected")
    assert answer["num_total"] == -(-answer["num_train"] * 10 // 7)


def test_power_from_given_shares() -> None:
    power = planned("--width", "768", "--p01", "0.0225", "--p10", "0.0025", "--n", "500")["power"]
    assert (round(power["power"], 4), round(power["type_m"], 4)) == (0.7976, 1.1158)
    assert power["discordance"] == "given"


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
    a, b = np.mean(FIRST), np.mean(SECOND)
    assert (power["p01"], power["p10"], power["discordance"]) == (
        pytest.approx((1 - a) * b), pytest.approx(a * (1 - b)), "independent",
    )  # fmt: skip


def test_a_collapsed_comparison_is_null(tmp_path: Path) -> None:
    noise = [0.73, 0.70, 0.70, 0.72, 0.71]
    files = [str(pilot(tmp_path / "a.csv", FIRST)), str(pilot(tmp_path / "b.csv", noise))]
    answer = planned(*files, "--width", "768", "--n", "100")
    assert (answer["num_train"], answer["num_total"], answer["status"]) == (None, None, "collapsed")
    assert "includes 0" in answer["reason"]
    with pytest.raises(ConfigError, match="give --n"):
        planned(*files, "--width", "768")
    shown = CliRunner().invoke(app, ["plan-data", *files, "--width", "768", "--n", "100"])
    assert "none (collapsed)" in shown.stdout
    assert shown.stdout.startswith("No size is recommended: ")


@pytest.mark.parametrize(
    ("protocol", "first"),
    [
        ("corrected", "The bound is 341,521,592 training passages, 512,282,388 in all. It holds for any data"),
        ("published", "Take 958,792 training passages, 1,438,188 in all: the published bound."),
    ],
)
def test_the_first_line_says_what_to_do(protocol: str, first: str) -> None:
    arguments = ["plan-data", "--effect", ".02", "--width", "768", "--protocol", protocol]
    assert CliRunner().invoke(app, arguments).stdout.startswith(first)


def test_the_same_pilot_twice_has_no_effect(pilots: list[str]) -> None:
    answer = planned(pilots[0], pilots[0], "--width", "768")
    assert (answer["num_train"], answer["status"]) == (None, "no_effect")


def test_items_show_which_passages_differ(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = {side: rng.random((5, 80)) < share for side, share in (("a", 0.7), ("b", 0.85))}
    for side, correct in truth.items():
        lines = [f"{s},{k},{int(correct[s, k])}" for s in range(5) for k in range(80)]
        (tmp_path / f"{side}.csv").write_text("seed,item,correct\n" + "\n".join(lines))
    power = planned(str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--width", "8")["power"]
    p01, p10 = (truth["b"] & ~truth["a"]).mean(), (truth["a"] & ~truth["b"]).mean()
    assert (power["p01"], power["p10"], power["n"]) == (pytest.approx(p01), pytest.approx(p10), 80)
    assert power["power"] == pytest.approx(mcnemar_power(p01, p10, 80).power)
    assert power["discordance"] == "counted"


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
    one = read_pilot(pilot(tmp_path / "1.csv", FIRST[:1]))
    with pytest.raises(InputError, match="at least 2"):
        compare_pilots(one, one)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--effect", ".1"), "--width is missing"),
        (("--width", "8"), "nothing to plan for"),
        (("--effect", "1.5", "--width", "8"), "from -1 to 1"),
        (("--effect", ".1", "--width", "8", "--protocol", "new"), "published, corrected"),
        (("--effect", ".1", "--width", "8", "--split", "4:x"), "use shares"),
        (("--effect", ".1", "--width", "8", "--split", "0:1"), "positive shares"),
        (("--width", "8", "--p01", ".1"), "belong together"),
        (("--width", "8", "--width", "-3", "--effect", ".1"), "--width -3"),
        (("--width", "8", "--effect", ".1", "--alpha", "nan"), "--alpha nan"),
        (("--effect", ".3", "--width", "8", "--p01", ".0225", "--p10", ".0025", "--n", "9"), "two comparisons"),
        (("--width", "8", "--effect", ".1", "--split", "1e-308:1e308"), "millionth"),
        (("--width", "8", "--effect", "nan"), "from -1 to 1"),
        (("--width", "8", "--p01", ".1", "--p10", ".2"), "need --n"),
        (("--effect", ".1", "--width", "8", "--n", "500"), "which also needs --p01 and --p10"),
        (("only-one.csv", "--width", "8"), "two pilot files"),
        (("a.csv", "b.csv", "--width", "8", "--effect", ".1"), "not both"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(*arguments)


def test_missing_files_and_impossible_shares() -> None:
    with pytest.raises(InputError, match="no such file"):
        planned("nowhere.csv", "nowhere.csv", "--width", "8")
    with pytest.raises(InputError, match="probabilities"):
        planned("--width", "8", "--p01", ".9", "--p10", ".2", "--n", "10")


def test_pilots_that_differ_as_often_one_way_as_the_other(tmp_path: Path) -> None:
    """Equal shares of discordant items have no power at all; that --n is missing would be no help."""
    for side, rows in (("a", ["0,x,1", "0,y,0", "1,x,1", "1,y,1"]), ("b", ["0,x,0", "0,y,1", "1,x,1", "1,y,1"])):
        (tmp_path / f"{side}.csv").write_text("seed,item,correct\n" + "\n".join(rows))
    answer = planned(str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--width", "8", "--n", "50")
    assert (answer["num_train"], answer["status"]) == (None, "no_effect")
    third = ["0,x,1", "1,x,0", "1,y,0", "1,z,1"], ["0,x,0", "1,x,1", "1,y,0", "1,z,1"]
    for side, rows in zip("ab", third, strict=True):
        (tmp_path / f"{side}.csv").write_text("seed,item,correct\n" + "\n".join(rows))
    answer = planned(str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--width", "8", "--n", "50")
    assert answer["effect"] == pytest.approx(-1 / 3)
    assert (answer["num_train"], answer["status"], answer["power"]) == (None, "collapsed", None)
