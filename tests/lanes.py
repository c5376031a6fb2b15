"""The lanes of `.ci/run` (tests/lanes.toml): `python -m tests.lanes list | run LANE... | ci`.

`.ci/run` checks some things each time. The rest is split into lanes. A lane runs when a file that it covers changed
within a day of the last commit; the others run in turn, so that each has run within `TURNS` consecutive runs. What ran
is recorded per machine, below `$XDG_STATE_HOME`. On a machine without a record, the number of commits says whose turn
it is.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
DURATIONS = Path(__file__).with_name("durations.json")
#: In how many consecutive runs each lane has run at least once.
TURNS = 6
#: `.ci/run` begins no lane that is expected to end after so many minutes: CI is cut off at 90, and some hours are slow.
LAST_MINUTE = 65
#: What is assumed of a lane whose duration is not recorded.
GUESS_S = 600.0


class LaneError(Exception):
    """A table or a name that is wrong; the message says how."""


@dataclass(frozen=True)
class Lane:
    """What is checked together.

    Attributes:
        name: Its name, and the mark of its tests.
        summary: What it checks.
        covers: Files and folders of the product that it protects, relative to the repository.
        commands: What it runs; `tests` stands for its tests.
        workers: Processes of its tests. Tests that share a cluster run in one.
        on_cluster: Whether it uses the demo's cluster.
        in_memory: Whether the temporary folders of its tests lie in memory, as those of `make test`.
        always: Whether it is part of each run.
    """

    name: str
    summary: str
    covers: tuple[str, ...]
    commands: tuple[str, ...] = ("tests",)
    workers: int = 2
    on_cluster: bool = False
    in_memory: bool = False
    always: bool = False

    def covers_file(self, file: str) -> bool:
        """Return whether the lane protects a file, named relative to the repository."""
        return any(file == prefix or file.startswith(prefix.rstrip("/") + "/") for prefix in self.covers)


def load_lanes(table: Path = TABLE) -> dict[str, Lane]:
    """Return all lanes by name.

    Raises:
        LaneError: If the table cannot be read.
    """
    try:
        entries = tomllib.loads(table.read_text("utf-8"))
        return {name: _lane(name, entry) for name, entry in entries.items()}
    except (OSError, tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        raise LaneError(f"{table.name} cannot be read: {error}") from None


def _lane(name: str, entry: Mapping[str, Any]) -> Lane:
    return Lane(name, **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})


def named(lanes: Mapping[str, Lane], names: Iterable[str]) -> list[Lane]:
    """Return the lanes of some names.

    Raises:
        LaneError: If there is no such lane.
    """
    for name in names:
        if name not in lanes:
            nearest = get_close_matches(name, lanes, n=1)
            hint = f", but {nearest[0]!r}" if nearest else ""
            raise LaneError(f"there is no lane {name!r}{hint}; the lanes are {', '.join(lanes)}")
    return [lanes[name] for name in names]


@dataclass(frozen=True)
class Choice:
    """A lane that is to run, and why."""

    lane: Lane
    reason: str


def choose(
    lanes: Mapping[str, Lane], changed: Sequence[str], last_run_s: Mapping[str, float], num_commits: int
) -> list[Choice]:
    """Return the lanes of one run of `.ci/run`: those of each run, those whose files changed, and those in turn.

    Those that ran longest ago come first.

    Args:
        lanes: All lanes by name.
        changed: Files that changed, relative to the repository.
        last_run_s: When each lane ended well the last time, in seconds; lanes that never did are missing.
        num_commits: Number of commits; says whose turn it is among lanes that never ran.
    """
    others = [lane for lane in lanes.values() if not lane.always]
    per_run = ceil(len(others) / TURNS)
    start = num_commits * per_run % len(others) if others else 0
    by_age = sorted(others[start:] + others[:start], key=lambda lane: last_run_s.get(lane.name, 0.0))
    chosen = [Choice(lane, "part of each run") for lane in lanes.values() if lane.always]
    for place, lane in enumerate(by_age):
        hits = [file for file in changed if lane.covers_file(file)]
        if hits:
            more = f" and {len(hits) - 1} more" if len(hits) > 1 else ""
            chosen.append(Choice(lane, f"{hits[0]}{more} changed"))
        elif place < per_run:
            chosen.append(Choice(lane, "its turn"))
    return chosen


def changed_files(folder: Path = REPOSITORY) -> list[str]:
    """Return the files of the commits within a day of the last one, and what is not committed."""
    newest_s = int(_git(folder, "log", "-1", "--format=%ct"))
    committed = _git(folder, "log", f"--since={newest_s - 86_400}", "--name-only", "--format=").split("\n")
    uncommitted = [line[3:] for line in _git(folder, "status", "--porcelain", "--untracked-files=no").split("\n")]
    return sorted({file for file in [*committed, *uncommitted] if file})


def covered_by(lanes: Mapping[str, Lane], lanes_by_file: Mapping[str, set[str]]) -> dict[str, Lane]:
    """Return the lanes, each of which also covers the files of tests that are marked with it."""
    files = {name: [file for file, names in lanes_by_file.items() if name in names] for name in lanes}
    return {name: replace(lane, covers=(*lane.covers, *files[name])) for name, lane in lanes.items()}


def lanes_of_tests(files: Iterable[str], folder: Path = REPOSITORY) -> dict[str, set[str]]:
    """Return the lanes of the tests in each file: those that its marks name, and those of the servers it imports."""
    texts = {file: (folder / file).read_text("utf-8") for file in files}
    servers = _servers_with_lanes(folder)
    names = "|".join(servers)
    imported = re.compile(rf"from tests\.servers(?: import |\.)({names})\b")
    return {
        file: _marks(text).union(*(servers[name] for name in imported.findall(text) if names))
        for file, text in texts.items()
    }


@cache
def _servers_with_lanes(folder: Path) -> dict[str, set[str]]:
    marks = {path.stem: _marks(path.read_text("utf-8")) for path in folder.glob("tests/servers/*.py")}
    return {name: lanes for name, lanes in marks.items() if lanes}


def _marks(text: str) -> set[str]:
    return set(re.findall(r'mark\.lane\((?:name=)?"([\w-]+)"\)', text))


def tracked_files(folder: Path = REPOSITORY) -> list[str]:
    """Return the files that git tracks, relative to the repository."""
    return [file for file in _git(folder, "ls-files").split("\n") if (folder / file).is_file()]


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.rstrip()


def record_file() -> Path:
    """Return the file that says when each lane ran on this machine."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "poolbench" / "lanes.json"


def last_runs(file: Path) -> dict[str, float]:
    """Return when each lane ended well the last time, in seconds since 1970; none if the record cannot be read."""
    try:
        return {str(name): float(ended_s) for name, ended_s in json.loads(file.read_text("utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def recorded_durations() -> dict[str, float]:
    """Return the recorded seconds of each lane, with `.ci/run` before the lanes as `base`."""
    try:
        recorded = json.loads(DURATIONS.read_text("utf-8"))["lanes"]
        return {str(name): float(taken_s) for name, taken_s in recorded.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        print(f"{DURATIONS.name} has no durations of lanes: each is assumed to take {GUESS_S:.0f} s", flush=True)
        return {}


def run_lane(lane: Lane) -> int:
    """Run the commands of a lane; return the exit code of the first that fails, else 0."""
    prepare = ("make cluster-up",) if lane.on_cluster else ()
    for command in (*prepare, *lane.commands):
        code = subprocess.run(arguments_of(lane, command), cwd=REPOSITORY, check=False).returncode
        if code:
            return code
    return 0


def arguments_of(lane: Lane, command: str) -> list[str]:
    """Return the arguments of a command of a lane; `tests` stands for its tests, `python` for this interpreter."""
    if command == "tests":
        workers = ["--numprocesses", str(lane.workers)] if lane.workers > 1 else []
        place = ["--in-memory"] if lane.in_memory else []
        shared = ["env", "TEST_CLUSTER=.poolbench"] if lane.on_cluster else []
        return [*shared, sys.executable, "-m", "pytest", *workers, *place, "-m", "lane", "--lane", lane.name]
    return [sys.executable if word == "python" else word for word in shlex.split(command)]


class Clock:
    """How long the lanes of one run take, and which of them still fit.

    A machine may be slower than the one whose durations are recorded. How much is told by what `.ci/run` did before the
    lanes.
    """

    def __init__(self, began_s: float, last_minute: float = LAST_MINUTE) -> None:
        """Start at the first lane; `.ci/run` began at `began_s`, in seconds since 1970."""
        self.began_s, self.end_s, self.durations = began_s, began_s + 60 * last_minute, recorded_durations()
        base_s = self.durations.get("base")
        self.slowness = max(1.0, (time.time() - began_s) / base_s) if base_s else 1.0

    def expected_s(self, lane: Lane) -> float:
        """Return how long a lane is expected to take."""
        return self.slowness * self.durations.get(lane.name, GUESS_S)

    def fits(self, lane: Lane, waiting: Sequence[Lane] = ()) -> bool:
        """Return whether a lane ends in time if those that wait run before it."""
        return lane.always or time.time() + sum(map(self.expected_s, (lane, *waiting))) <= self.end_s


def left_out(lanes: Sequence[Lane], clock: Clock) -> set[str]:
    """Return the names of the lanes, in the order of their turn, that do not fit into the time."""
    kept, names = list[Lane](), set[str]()
    for lane in lanes:
        if clock.fits(lane, kept):
            kept.append(lane)
        else:
            names.add(lane.name)
    return names


@dataclass(frozen=True)
class Ended:
    """What came out of a lane: seconds and exit code, or why it was left out."""

    lane: Lane
    taken_s: float = 0.0
    code: int = 0
    left_out: str = ""

    def __str__(self) -> str:
        """Return a line of the table of times."""
        if self.left_out:
            return f"         lane {self.lane.name}: {self.left_out}"
        return f"{self.taken_s:6.0f} s  lane {self.lane.name}" + (f"  FAILED ({self.code})" if self.code else "")


def run_chosen(choices: Sequence[Choice], clock: Clock) -> Iterator[Ended]:
    """Run lanes one after the other, those on the demo's cluster first, and yield what came out of each."""
    absent = left_out([choice.lane for choice in choices], clock)
    lanes = sorted((choice.lane for choice in choices), key=lambda lane: not lane.on_cluster)
    for choice in choices:
        print(f"lane {choice.lane.name}: {choice.reason}", flush=True)
    is_up = any(lane.on_cluster for lane in lanes)
    for lane in lanes:
        if is_up and not lane.on_cluster:  # it would take memory from the clusters of tests
            subprocess.run(["make", "-s", "cluster-down"], cwd=REPOSITORY, check=False)
            is_up = False
        if lane.name in absent or not clock.fits(lane):
            why = f"left for the next run: its {clock.expected_s(lane):.0f} s do not fit into the time"
            yield Ended(lane, left_out=why)
            continue
        begun_s = time.time()
        print(f"\n=== lane {lane.name} ({begun_s - clock.began_s:.0f} s since start)", flush=True)
        code = run_lane(lane)
        if code == 0:
            remember(lane)
        yield Ended(lane, time.time() - begun_s, code)


def remember(lane: Lane) -> None:
    """Record that a lane has just ended well."""
    file = record_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(last_runs(file) | {lane.name: time.time()}), "utf-8")


def record(durations: Mapping[str, float]) -> None:
    """Write durations of lanes beside those of files of tests."""
    content = json.loads(DURATIONS.read_text("utf-8")) if DURATIONS.is_file() else {}
    content["lanes"] = dict(sorted({**content.get("lanes", {}), **durations}.items()))
    DURATIONS.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the lanes, and when each ran here")
    run = commands.add_parser("run", help="run some lanes")
    run.add_argument("lanes", nargs="+", metavar="LANE")
    ci = commands.add_parser("ci", help="run the lanes of one run of .ci/run")
    ci.add_argument("--all", action="store_true", help="run all lanes, however long they take: before a release")
    ci.add_argument("--began", type=float, help="when .ci/run began, in seconds since 1970")
    ci.add_argument("--times", type=Path, help="file that gets a line for each lane")
    for command in (run, ci):
        command.add_argument("--record", action="store_true", help=f"write how long each took to {DURATIONS.name}")
    arguments = parser.parse_args()
    try:
        return _obey(arguments, load_lanes())
    except LaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _obey(arguments: argparse.Namespace, lanes: Mapping[str, Lane]) -> int:
    if arguments.command == "list":
        print("\n".join(listing(lanes)))
        return 0
    if arguments.command == "run":
        return _report(
            run_chosen([Choice(lane, "named") for lane in named(lanes, arguments.lanes)], unhurried()), arguments
        )
    began_s = arguments.began or time.time()
    if arguments.record:
        record({"base": round(time.time() - began_s)})
    if arguments.all:
        return _report(
            run_chosen([Choice(lane, "all lanes") for lane in lanes.values()], unhurried(began_s)), arguments
        )
    num_commits = int(_git(REPOSITORY, "rev-list", "--count", "HEAD"))
    tests = [file for file in tracked_files() if file.endswith(".py") and "tests/" in file]
    choices = choose(covered_by(lanes, lanes_of_tests(tests)), changed_files(), last_runs(record_file()), num_commits)
    return _report(run_chosen(choices, Clock(began_s)), arguments)


def unhurried(began_s: float | None = None) -> Clock:
    """Return a clock that leaves out no lane."""
    return Clock(began_s or time.time(), last_minute=float("inf"))


def listing(lanes: Mapping[str, Lane]) -> Iterator[str]:
    """Yield a line for each lane: when it ran here, and what it checks."""
    ran_s = last_runs(record_file())
    for lane in lanes.values():
        ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(ran_s[lane.name])) if lane.name in ran_s else "not here"
        kind = "each run" if lane.always else "in turn"
        yield f"{lane.name:14} {kind:11} {ended:17} {lane.summary}"


def _report(results: Iterable[Ended], arguments: argparse.Namespace) -> int:
    """Print what comes out of lanes, record it where that is asked for, and return the exit code."""
    failed = False
    for ended in results:
        print(ended, flush=True)
        if (times := getattr(arguments, "times", None)) is not None:
            with times.open("a", encoding="utf-8") as file:
                file.write(f"{ended}\n")
        if arguments.record and not ended.code and not ended.left_out:
            record({ended.lane.name: round(ended.taken_s)})
        failed |= ended.code != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
