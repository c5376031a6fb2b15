"""`python -m tests.client`: install the client from dist/ for another Python, measure it, and test it there.

The newest Python other than ours is used, from PATH, pyenv or uv; without one, nothing is tested, and that is said.
Its packages come from pip's own sources, at their newest versions, as users get them.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.install import SUPPORTED, find_python

REPOSITORY = Path(__file__).resolve().parents[1]
MAX_MB = 400
MAX_IMPORT_S = 0.3
#: The wheels of a client. Each needs the others at its own version.
WHEELS = ("poolbench-*.whl", "poolbench_corpora-*.whl", "poolbench_driver-*.whl")
#: The passages and probing sets that ship.
TEXTS = "poolbench_real_text-*.whl"
TOOLS = ("pytest", "pytest-timeout", "hypothesis")
#: Tests that need no extra: what a client reads, sends and shows.
TESTS = (
    *(f"shared/tests/test_{name}.py" for name in ("concepts", "contracts", "settings_files", "steps", "texts")),
    *(
        f"shared/tests/{name}.py"
        for name in ("settings/test_access", "storage/test_artifacts", "library/test_directions")
    ),
    *(f"driver/tests/test_{name}.py" for name in ("cli_imports", "config", "dataset_folder", "queries")),
    *(f"driver/tests/cluster/test_{name}.py" for name in ("services", "session")),
    *(
        "driver/tests/cli/test_listing.py",
        "driver/tests/imports/test_scorers.py",
        "driver/tests/records/test_folder.py",
    ),
    *("corpus/tests/test_partition.py", "corpus/tests/test_stories.py"),
)
#: A bundle of ours, which the client with its extra `statistics` verifies.
VERIFIES = "tests/system/driver/test_sharing.py::test_a_client_verifies_a_bundle_without_a_cluster"


def main() -> int:
    """Install and test; return 0 if everything passed, or if this Python is the only one."""
    python = next(other_pythons(), None)
    if python is None:
        print("skipped: no other Python from 3.11 to 3.14 is on PATH, in pyenv or in uv")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return check(python, Path(folder, "venv"))


def other_pythons() -> Iterator[str]:
    """Yield interpreters of other versions than ours, the newest first."""
    for version in reversed(SUPPORTED):
        if version != sys.version_info[:2] and (found := find_python("python" + ".".join(map(str, version)))):
            yield found


def check(python: str, venv: Path) -> int:
    """Make an environment with the client alone, and check its size, its imports and its tests."""
    began = time.monotonic()
    _run([python, "-m", "venv", str(venv)])
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    wheels = _built(*WHEELS)
    _run([*pip, "install", "--quiet", *wheels, *_built(TEXTS)])
    size_mb, import_s = _size_mb(venv), _import_s(venv / "bin" / "python")
    client = venv / "bin" / "poolbench-driver"
    version = subprocess.run([str(client), "--version"], capture_output=True, text=True, check=True).stdout.strip()
    packages = json.loads(subprocess.run([*pip, "list", "--format=json"], capture_output=True, check=True).stdout)
    print(
        f"{version} on {python}: {len(packages) - 1} packages, {size_mb:.0f} MB of {MAX_MB}; import "
        f"{import_s:.3f} s of {MAX_IMPORT_S}; installed in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    if size_mb > MAX_MB:
        return 1
    _run([*pip, "install", "--quiet", *TOOLS])
    tests = [str(venv / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    served = [sys.executable, "-m", "pytest", "-q", "-m", "", "tests/system/clusters/test_client.py"]
    failed = [_tested(tests), _tested(served, CLIENT=str(client))]
    _run([*pip, "install", "--quiet", *(f"{wheel}[statistics]" for wheel in wheels)])
    failed.append(_tested([sys.executable, "-m", "pytest", "-q", VERIFIES], CLIENT=str(client)))
    return int(any(failed))


def _built(*patterns: str) -> list[str]:
    """Return the paths of the wheels whose names match."""
    return [str(wheel) for pattern in patterns for wheel in sorted((REPOSITORY / "dist").glob(pattern))]


def _size_mb(venv: Path) -> float:
    """Return the space on disk of the packages in MB, with their compiled code and without pip."""
    (packages,) = venv.glob("lib/python3.*/site-packages")
    files = (path for path in packages.rglob("*") if path.is_file() and not path.is_symlink())
    own = (path for path in files if not path.relative_to(packages).parts[0].startswith("pip"))
    return sum(path.stat().st_blocks * 512 for path in own) / 1e6


def _import_s(python: Path) -> float:
    """Return how long `import poolbench_driver` takes: the shortest of five, because other programs run too."""
    code = "import time; a = time.perf_counter(); import poolbench_driver; print(time.perf_counter() - a)"
    command = [str(python), "-c", code]
    return min(float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(5))


def _tested(command: Sequence[str], **environment: str) -> int:
    return subprocess.run(command, cwd=REPOSITORY, env={**os.environ, **environment}, check=False).returncode


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, cwd=REPOSITORY, check=True)


if __name__ == "__main__":
    sys.exit(main())
