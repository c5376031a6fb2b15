"""The command line as a user meets it: help of every command, one line of error, the right exit code."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver.tests.conftest import Driver
from tests.waiting import PATIENCE_S

from poolbench.errors import InputError
from poolbench_driver.cli.suite_options import help_rows, with_settings
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.queries.arrays import load_array


def refused(done: subprocess.CompletedProcess[str], code: int, expected: str) -> None:
    assert done.returncode == code, done.stderr
    assert expected in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert "secret-token" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("run", "--preset", "demo", "--display", "fancy"), 2, "unknown display"),
        (("run", "--preset", "demo"), 1, "is the cluster up"),
        (("run", "nowhere.yaml"), 2, "nowhere.yaml"),
        (("run", "--strategies", "A1_meen"), 2, "did you mean A1_mean"),
        (("run", "--strategies", "A1_mean,W2_last_k:k=0"), 2, "greater than or equal to 1, got 0"),
        (("run", "--model", "dmeo"), 2, "did you mean demo"),
        (("run", "--model", "gpt2"), 2, "has an owner, such as openai-community/gpt2"),
        (("run", "run.yaml", "--preset", "card"), 2, "both name settings to start from"),
        (("run", "--corpus", "/nowhere"), 2, "/nowhere"),
        (("corpus", "validate", "no-such-folder"), 2, "no such folder"),
        (("frobnicate",), 2, "frobnicate"),
        (("leaderboard", "--suite", "holms", "--table", "none.csv"), 2, "did you mean holmes"),
        (("leaderboard", "--suite", "holmes", "--table", "none.csv", "--power"), 2, "leave out --table"),
        (("run", "--suite", "holmes", "--scorers", "bert"), 2, "the suite holmes trains no scorers"),
        (("run", "--suite", "humanoid", "--protocol", "published"), 2, "protocol: Input should be 'corrected'"),
        (("run", "--suite", "ce-bench", "--saes", "nothing"), 2, "--saes nothing: there is no such path"),
        (("import", "saes", "none"), 2, "none: there is no such file or folder"),
        (("run", "--layers", "2,x"), 2, "block indices"),
        (("run", "--activations", "x", "--set", "model=demo"), 2, "two models"),
        (("run", "--scorers", "brt"), 2, "did you mean bert"),
        (("run", "--suite", "holms", "--help"), 2, "holmes"),
        (("run", "--layer-choice", "--limit", "3"), 2, "--layer-choice has no value"),
        (("run", "--concepts", "--limit", "3"), 2, "--concepts has no value: the next word is an option"),
        (("steer", "a", "--edit", "--json"), 2, "--edit has no value: the next word is an option"),
    ],
)
def test_mistakes_are_one_line(cli: Driver, arguments: tuple[str, ...], code: int, expected: str) -> None:
    refused(cli(*arguments), code, expected)


@pytest.mark.parametrize("given", [["--prompted"], ["--prompted", "true"], ["--prompted", "FALSE"], ["--prompted=no"]])
def test_a_setting_that_is_true_or_false_takes_no_other_word(given: list[str]) -> None:
    of = SUITES.get("poolbench").config
    value = (*given[0].split("="), *given[1:], "true")[1]
    assert with_settings([*given, "--concepts", "contrast"], of, ("--concepts",)) == [
        *("--set", f"prompted={value}", "--concepts", "contrast")
    ]
    assert with_settings(["a.yaml", *given], of, ())[:3] == ["a.yaml", "--set", f"prompted={value}"]
    assert with_settings(["--prompted", "a.yaml"], of, ()) == ["--set", "prompted=true", "a.yaml"]


def test_parts_that_are_away_are_named(driver: Any, environment: dict[str, str], tmp_path: Path) -> None:
    no_broker = {**environment, "POOLBENCH_BROKER": "redis://:hidden@127.0.0.1:9/0"}
    done = driver(no_broker, "run", "--preset", "demo")
    refused(done, 1, "redis://127.0.0.1:9/0 does not answer")
    assert "hidden" not in done.stderr
    (tmp_path / "file").write_text("no folder")
    refused(driver({**environment, "POOLBENCH_STORE": str(tmp_path / "file")}, "status"), 1, "object store")
    stored = ("POOLBENCH_STORE", "POOLBENCH_BROKER")
    nothing = {name: value for name, value in environment.items() if name not in stored}
    refused(driver(nothing, "status"), 1, "Connection refused; is the cluster up? POOLBENCH_HTTP names this address")
    refused(driver(nothing, "gc"), 2, "POOLBENCH_HTTP has the address of its services only")
    nowhere = {name: value for name, value in nothing.items() if name != "POOLBENCH_HTTP"}
    refused(driver(nowhere, "status"), 2, "make cluster-up")


def test_a_process_ends_as_the_command_does(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "poolbench_driver.cli", "run", "--concepts", "contrst"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    refused(done, 2, "did you mean contrast")


def test_arrays_are_plain_numbers_of_the_right_shape(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(Exception, match="2 dimensions are needed"):
        load_array(tmp_path / "flat.npy", 2)
    with pytest.raises(InputError, match=r"not a readable \.npy file: it holds Python objects; save numbers"):
        load_array(tmp_path / "objects.npy", 1)
    assert load_array(tmp_path / "flat.npy", 1).shape == (3,)


def test_other_files_are_no_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", v=np.zeros(3))
    contents = {
        "cv.gguf": b"GGUF" + bytes(60),
        "v.npz": (tmp_path / "v.npz").read_bytes(),
        "v.txt": b"0.1",
        "empty": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=r"is not a \.npy file, as numpy\.save") as caught:
            load_array(tmp_path / name, 1)
        assert "allow_pickle" not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"absent\.npy cannot be read: No such file"):
        load_array(tmp_path / "absent.npy", 1)


def test_markup_of_a_description_is_shown(cli: Driver) -> None:
    """Rich takes [rows, width] for a style and leaves it out."""
    assert ".npy [rows, width]" in cli("probe", "-h").stdout


@pytest.mark.parametrize("order", [("--suite", "holmes", "-h"), ("--help", "--suite=holmes")])
def test_a_suite_shows_its_options_with_their_defaults(cli: Driver, order: tuple[str, ...]) -> None:
    shown = cli("run", *order).stdout
    options, text = re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE), " ".join(shown.split())
    assert {"--sets", "--flash", "--control", "--recipe", "--seeds", "--add-bos", "--suite"} <= set(options)
    assert not {"--concepts", "--metrics", "--scorers", "--steering-layer"} & set(options)
    assert len(options) - options.count("--set") == len({*options} - {"--set"})
    assert "--flash <float> Share of the training groups" in text and "as the paper says. [default: released]" in text
    assert "[default: A1_mean, P1_last_token]" in text  # the preset's: the class has A1_mean alone


def test_a_flag_of_the_command_stays_a_flag_in_the_help_of_a_suite(cli: Driver) -> None:
    shown = cli("run", "--suite", "poolbench", "-h").stdout
    assert "  --keep-activations / --no-keep-activations\n" in shown
    assert "--set steering.temperature=<float>" in shown and "--scorers" in shown


def test_every_setting_of_every_suite_is_described() -> None:
    for suite in SUITES.all():
        rows = dict(help_rows(suite, {"--corpus": "--corpus <str>"}, ()))
        assert [option for option, text in rows.items() if not text.partition("[default")[0]] == [], suite.id
