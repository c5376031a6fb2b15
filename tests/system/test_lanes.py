"""Lanes: each test is in one, each folder of the product is covered, and each lane runs when it should."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from tests import lanes
from tests.lanes import Choice, Clock, Ended, Lane, LaneError, choose, covered_by, left_out, load_lanes, named

LANES = load_lanes()
TRACKED = lanes.tracked_files()
TESTS = [file for file in TRACKED if "/tests/" in f"/{file}" and file.endswith(".py")]
#: Files of no product: what the repository itself is made with.
OF_THE_REPOSITORY = (
    ".ci",
    "tests",
    "conftest.py",
    "pyproject.toml",
    "CHANGELOG.md",
    "AGENTS.md",
    "CONTRIBUTING.md",
    "LICENSE",
    ".gitignore",
    ".dockerignore",
)
#: How deep a folder must be covered, by the beginning of its path.
DEPTHS = {"shared/src": 4, "driver/src": 4, "corpus/src": 1, "services": 2, "deploy": 2, "recipes": 2}


def folders_of_the_product() -> Iterator[str]:
    """Yield each folder, or file of the root, that some lane must cover."""
    for file in TRACKED:
        if file.startswith(OF_THE_REPOSITORY) or "/tests/" in file:
            continue
        depth = next((depth for start, depth in DEPTHS.items() if file.startswith(start + "/")), 1)
        yield "/".join(PurePosixPath(file).parts[:depth])


def test_every_mark_names_a_lane_and_every_lane_with_tests_has_some() -> None:
    marks = lanes.lanes_of_tests(TESTS)
    unknown = {file: names - LANES.keys() for file, names in marks.items() if names - LANES.keys()}
    assert not unknown, f"marks of lanes that tests/lanes.toml does not have: {unknown}"
    marked = set().union(*marks.values())
    assert {name for name, lane in LANES.items() if "tests" in lane.commands} == marked


def test_every_folder_of_the_product_is_covered() -> None:
    covers = [lane.covers for lane in LANES.values()]
    bare = {
        folder
        for folder in set(folders_of_the_product())
        if not any(folder.startswith(prefix) or prefix.startswith(folder + "/") for each in covers for prefix in each)
    }
    assert not bare, f"no lane covers {sorted(bare)}: name them in tests/lanes.toml"


def test_lanes_cover_what_there_is() -> None:
    missing = [prefix for lane in LANES.values() for prefix in lane.covers if not (lanes.REPOSITORY / prefix).exists()]
    assert not missing


def test_commands_of_lanes_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (lanes.REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for lane in LANES.values():
        for command in lane.commands:
            words = [word for word in command.split() if word != "env" and "=" not in word]
            if words[0] == "make":
                assert words[1] in targets, command
            elif words[0] == "python" and words[1] == "-m" and words[2] != "pytest":
                place = lanes.REPOSITORY / words[2].replace(".", "/")
                assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), command
            elif words[0] == "python" and words[1] != "-m":
                assert (lanes.REPOSITORY / words[1]).is_file(), command


def some(*names: str, **fields: object) -> dict[str, Lane]:
    return {name: Lane(name, "", covers=(f"product/{name}",), **fields) for name in names}  # type: ignore[arg-type]


def chosen(choices: list[Choice]) -> set[str]:
    return {choice.lane.name for choice in choices}


@pytest.mark.parametrize("count", [1, 5, 6, 7, 13, 30])
def test_each_lane_runs_within_six_consecutive_runs(count: int) -> None:
    table, ran_s = some(*(f"lane{n}" for n in range(count))), dict[str, float]()
    for start in (0, lanes.TURNS):  # a record from nothing, and one that goes on
        seen: set[str] = set()
        for run in range(lanes.TURNS):
            names = chosen(choose(table, [], ran_s, num_commits=17))
            assert len(names) == -(-count // lanes.TURNS)
            ran_s |= dict.fromkeys(names, 100.0 * (start + run + 1))
            seen |= names
        assert seen == table.keys()


def test_without_a_record_the_number_of_commits_says_whose_turn_it_is() -> None:
    table = some(*(f"lane{n}" for n in range(12)))
    seen = [chosen(choose(table, [], {}, num_commits)) for num_commits in range(6)]
    assert set().union(*seen) == table.keys()


def test_a_lane_runs_when_a_file_that_it_covers_changed() -> None:
    table = {**some("a", "b", "c", "d", "e", "f", "g"), **some("each", always=True)}
    ran_s = dict.fromkeys(table, 5.0) | {"a": 1.0, "b": 2.0}
    choices = choose(table, ["product/f/x.py", "product/f/y.py", "product/ff.py", "product/g"], ran_s, 0)
    assert chosen(choices) == {"each", "a", "b", "f", "g"}
    reasons = {choice.lane.name: choice.reason for choice in choices}
    assert reasons["f"] == "product/f/x.py and 1 more changed" and reasons["g"] == "product/g changed"
    assert reasons["each"] == "part of each run" and reasons["a"] == "its turn"


def test_a_file_of_tests_is_covered_by_the_lanes_that_it_is_marked_with(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("@pytest.mark.lane(name={})\ndef test_it(): ...\n".format('"a"'))
    table = covered_by(some("a", "b"), lanes.lanes_of_tests(["test_x.py"], tmp_path))
    assert chosen(choose(table, ["test_x.py"], dict.fromkeys("ab", 1.0), 0)) == {"a"} | chosen(
        choose(table, [], dict.fromkeys("ab", 1.0), 0)
    )
    assert table["a"].covers_file("test_x.py") and not table["b"].covers_file("test_x.py")


def test_changes_are_those_within_a_day_of_the_last_commit(tmp_path: Path) -> None:
    def git(*arguments: str, when: str = "2026-01-05T12:00:00") -> None:
        own = {"GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when, "HOME": str(tmp_path)}
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, env={**os.environ, **own}, stdout=-3)

    git("init", "-q")
    for name, when in (("old", "2026-01-03"), ("yesterday", "2026-01-05"), ("now", "2026-01-05")):
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-q", "-m", name, when=f"{when}T1{len(name) % 3}:00:00")
    (tmp_path / "old").write_text("changed, not committed")
    assert lanes.changed_files(tmp_path) == ["now", "old", "yesterday"]
    git("checkout", "-q", "old")
    assert lanes.changed_files(tmp_path) == ["now", "yesterday"]


def test_an_unknown_lane_is_named_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named(LANES, ["soak"]) == [LANES["soak"]]
    monkeypatch.setattr("sys.argv", ["lanes", "run", "engine"])
    assert lanes.main() == 2
    assert "no lane 'engine', but 'engines'; the lanes are cluster, " in capsys.readouterr().err


def test_a_table_that_cannot_be_read_is_an_error_of_the_user(tmp_path: Path) -> None:
    for content in ("[a", '[a]\nsummary = "x"\nunknown = 1\ncovers = []', "a = 1"):
        table = tmp_path / "lanes.toml"
        table.write_text(content)
        with pytest.raises(LaneError, match=r"lanes\.toml cannot be read"):
            load_lanes(table)


def test_what_does_not_fit_into_the_time_is_left_out_beginning_with_what_ran_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    durations = {"base": 1000, "a": 600, "b": 600, "c": 100, "each": 9000}
    monkeypatch.setattr(lanes, "recorded_durations", lambda: durations)
    monkeypatch.setattr(lanes.time, "time", lambda: 3000.0)
    clock = Clock(began_s=1000.0, last_minute=60)  # twice as slow as recorded; 1,600 s are left
    assert clock.slowness == 2.0 and clock.expected_s(LANES["soak"]) == 2 * lanes.GUESS_S
    first, second, third = some("a", "b", "c").values()
    assert left_out([second, first, third], clock) == {"a"}
    each = Lane("each", "", (), always=True)
    assert left_out([each, first, second, third], clock) == {"a", "b", "c"}
    assert not left_out([each, first, second, third], Clock(1000.0, last_minute=float("inf")))


def test_those_that_ran_longest_ago_come_first() -> None:
    table = {**some("a", "b", "c"), **some("each", always=True)}
    choices = choose(table, ["product/a", "product/b", "product/c"], {"a": 2.0, "c": 1.0}, 0)
    assert [choice.lane.name for choice in choices] == ["each", "b", "c", "a"]
    orders = {
        tuple(choice.lane.name for choice in choose(table, ["product/a", "product/b", "product/c"], {}, num_commits))
        for num_commits in range(3)
    }
    assert len(orders) == 3, "without a record, another lane is the last after each commit"


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"lanes": 3}', '{"lanes": {"a": "x"}}', '{"files": {"a": 1}}']
)
def test_durations_that_are_missing_or_of_others_are_guessed(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lanes, "DURATIONS", tmp_path / "durations.json")
    if content is not None:
        (tmp_path / "durations.json").write_text(content)
    clock = Clock(began_s=0.0)
    assert clock.slowness == 1.0 and clock.expected_s(LANES["soak"]) == lanes.GUESS_S
    assert "durations.json has no durations of lanes" in capsys.readouterr().out


def test_a_lane_ends_at_its_first_failing_command_and_the_next_lane_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    mark = "python -c 'import sys; print(sys.argv[1]); sys.exit(int(sys.argv[2]))'"
    bad = Lane("bad", "", (), commands=(f"{mark} one 0", f"{mark} two 3", f"{mark} three 0"))
    good = Lane("good", "", (), commands=(f"{mark} four 0",))
    ended = list(lanes.run_chosen([Choice(bad, "x"), Choice(good, "y")], lanes.unhurried()))
    assert [(each.lane.name, each.code) for each in ended] == [("bad", 3), ("good", 0)]
    assert str(ended[0]).endswith("lane bad  FAILED (3)") and "three" not in capfd.readouterr().out
    assert lanes.last_runs(lanes.record_file()).keys() == {"good"}, "a lane that failed has not had its turn"
    lanes.record_file().write_text("damaged")
    assert lanes.last_runs(lanes.record_file()) == {}


def test_durations_are_written_beside_those_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "DURATIONS", tmp_path / "durations.json")
    lanes.record({"soak": 240})
    lanes.DURATIONS.write_text(json.dumps(json.loads(lanes.DURATIONS.read_text()) | {"files": {"a": 1.0}}))
    lanes.record({"base": 900})
    assert json.loads(lanes.DURATIONS.read_text()) == {"lanes": {"base": 900, "soak": 240}, "files": {"a": 1.0}}
    assert "left" in str(Ended(LANES["soak"], left_out="left for the next run"))
