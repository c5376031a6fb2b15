"""The installer: interpreters, unfit environments, bundles, PyTorch's sources. It works on copies of the checkout."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from deploy import install
from deploy.bundle import Parts

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Checkout:
    """A copy of what the installer reads, with a bundle of one tiny package instead of the real ones."""

    def __init__(self, root: Path) -> None:
        self.root, self.bundle = root / "checkout", root / "bundle"
        (self.root / "deploy").mkdir(parents=True)
        shutil.copy(install.__file__, self.root / "deploy")
        shutil.copytree(install.REQUIREMENTS, self.root / "requirements")
        (self.bundle / "wheels").mkdir(parents=True)
        wheel = tiny_wheel(self.bundle / "wheels")
        pin = f"tiny==1.0 --hash=sha256:{sha256(wheel.read_bytes()).hexdigest()}\n"
        (self.bundle / "pins.txt").write_text(pin)
        self.describe(PYTHON)

    @property
    def venv(self) -> Path:
        """Return the environment that the installer makes."""
        return self.root / ".venv"

    def describe(self, python: str) -> None:
        """Write for which Python the bundle is."""
        (self.bundle / "bundle.json").write_text(json.dumps({"python": python}))

    def run(
        self, *arguments: str, python: str = sys.executable, within: Sequence[str] = (), **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the installer on the bundle, without packages of the repository; `within` is a command that starts it."""
        command = [
            *within,
            python,
            str(self.root / "deploy" / "install.py"),
            "--bundle",
            str(self.bundle),
            "--packages",
        ]
        with_uv = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **env}
        return subprocess.run(
            [*command, *arguments], check=False, capture_output=True, text=True, env=with_uv, timeout=120
        )

    def imports(self) -> bool:
        """Return whether the environment has the tiny package."""
        code = [str(self.venv / "bin" / "python"), "-c", "import tiny"]
        return subprocess.run(code, check=False, capture_output=True).returncode == 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Return a checkout that was never installed."""
    return Checkout(tmp_path)


def tiny_wheel(folder: Path) -> Path:
    """Write the wheel of a package with one empty module."""
    info = "tiny-1.0.dist-info"
    texts = {
        "tiny.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return wheel


def one_error(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error of a run that failed, which is one line without a traceback."""
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in done.stderr
    return line


def find(version: str) -> str | None:
    """Return an interpreter of a version."""
    return install.find_python(f"python{version}")


def interpreter(version: str) -> str:
    """Return an interpreter of a version that PoolBench may not support, or skip."""
    return find(version) or pytest.skip(f"no Python {version} on this machine")


def test_a_bundle_is_installed_without_a_network_and_then_left_as_it_is(checkout: Checkout) -> None:
    """By the same command again, and by `make install`, which knows of no bundle."""
    alone = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        alone = []  # this machine does not let a process leave its network
    first = checkout.run(within=alone)
    assert first.returncode == 0, first.stderr
    assert checkout.imports()
    again = checkout.run()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    shutil.rmtree(checkout.bundle)
    command = [sys.executable, str(checkout.root / "deploy" / "install.py"), "--packages"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_oldest_python_goes_on_with_a_supported_one(checkout: Checkout) -> None:
    old = next(filter(None, map(find, ("3.8", "3.9", "3.10"))), None) or pytest.skip("no old Python on this machine")
    done = checkout.run("--python", sys.executable, python=old)
    assert done.returncode == 0, done.stderr
    assert checkout.imports() and install.version_of(checkout.venv / "bin" / "python") == PYTHON


def test_without_a_supported_python_one_line_says_what_to_install(checkout: Checkout, tmp_path: Path) -> None:
    done = checkout.run(python=interpreter("3.9"), PATH=str(tmp_path), PYENV_ROOT=str(tmp_path))
    line = one_error(done)
    assert "3.11, 3.12, 3.13, 3.14" in line and "uv python install 3.12" in line and "python3.12-venv" in line


@pytest.mark.parametrize(("asked", "reason"), [("no-such-python", "does not start|starts"), ("3.9", "is Python 3.9")])
def test_a_chosen_python_that_does_not_fit_is_refused(checkout: Checkout, asked: str, reason: str) -> None:
    chosen = interpreter(asked) if asked == "3.9" else asked
    line = one_error(checkout.run("--python", chosen))
    assert any(each in line for each in reason.split("|")) and "3.11, 3.12, 3.13, 3.14" in line


def test_an_environment_of_an_old_python_is_made_again(checkout: Checkout) -> None:
    subprocess.run([interpreter("3.9"), "-m", "venv", "--without-pip", str(checkout.venv)], check=True)
    done = checkout.run()
    assert done.returncode == 0 and "it is of Python 3.9" in done.stdout
    assert checkout.imports()


@pytest.mark.parametrize("damage", ["python", "folder"])
def test_a_half_made_environment_is_made_again(checkout: Checkout, damage: str) -> None:
    (checkout.venv / "bin").mkdir(parents=True)
    if damage == "python":
        (checkout.venv / "pyvenv.cfg").write_text("home = gone\n")
        (checkout.venv / "bin" / "python").symlink_to(checkout.root / "gone")
    done = checkout.run()
    assert done.returncode == 0 and "its Python does not start" in done.stdout
    assert checkout.imports()


def test_a_folder_that_is_not_an_environment_is_left_alone(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    (checkout.venv / "mine.py").write_text("")
    assert "is not a virtual environment: move it away" in one_error(checkout.run())
    assert (checkout.venv / "mine.py").exists()


def test_another_chosen_python_replaces_the_environment(checkout: Checkout) -> None:
    others = [version for version in ("3.12", "3.13", "3.14") if version != PYTHON and find(version)]
    if not others:
        pytest.skip("no other Python of 3.12 to 3.14 on this machine")
    assert checkout.run().returncode == 0
    checkout.describe(others[0])
    done = checkout.run("--python", interpreter(others[0]))
    assert done.returncode == 0, done.stderr
    assert install.version_of(checkout.venv / "bin" / "python") == others[0] and checkout.imports()


def test_a_bundle_for_another_python_is_refused(checkout: Checkout) -> None:
    checkout.describe("3.99")
    assert f"the bundle is for Python 3.99, not {PYTHON}" in one_error(checkout.run())


def test_a_bundle_names_what_the_machine_lacks(checkout: Checkout) -> None:
    (checkout.bundle / "have.txt").write_text("no-such-package==1.0\n")
    assert "lacks what the bundle leaves out: no-such-package==1.0" in one_error(checkout.run())


def test_what_a_bundle_leaves_out_is_shared(checkout: Checkout) -> None:
    (checkout.bundle / "have.txt").write_text(f"pytest=={pytest.__version__}\n")
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    code = [str(checkout.venv / "bin" / "python"), "-c", "import pytest, tiny"]
    assert subprocess.run(code, check=False).returncode == 0


def test_a_file_with_another_hash_is_refused(checkout: Checkout) -> None:
    (checkout.bundle / "pins.txt").write_text(f"tiny==1.0 --hash=sha256:{'0' * 64}\n")
    assert "tiny" in one_error(checkout.run()) and not checkout.imports()


def test_a_folder_without_pins_is_not_a_bundle(checkout: Checkout) -> None:
    (checkout.bundle / "pins.txt").unlink()
    assert "is not a folder that `make bundle` wrote" in one_error(checkout.run())


class Sources:
    """Package sources of which only the last `good` have PyTorch."""

    def __init__(self, good: int) -> None:
        self.good, self.asked = good, list[Sequence[str]]()

    def install(self, arguments: Sequence[str], files: Sequence[Path] = ()) -> None:
        """Record what is asked for; fail as uv does."""
        self.asked.append(arguments)
        if len(self.asked) < 4 - self.good:
            raise install.InstallError(f"there is no version of torch (try {len(self.asked)})")


def test_pytorch_comes_from_pips_sources_first() -> None:
    sources = Sources(good=3)
    install.install_torch(sources)  # type: ignore[arg-type]
    assert sources.asked == [[(install.REQUIREMENTS / "cpu-local.txt").read_text().strip()]]


def test_pytorch_comes_from_the_package_index_last(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "TORCH_INDEX", "http://127.0.0.1:9")  # no machine listens there
    sources = Sources(good=2)
    install.install_torch(sources)  # type: ignore[arg-type]
    assert sources.asked[-1] == ["--require-hashes", "-r", str(install.TORCH)]
    assert "with its CUDA libraries instead, 2.5 GB" in capsys.readouterr().out


def test_pytorch_that_no_source_has_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "TORCH_INDEX", "http://127.0.0.1:9")
    with pytest.raises(install.InstallError) as raised:
        install.install_torch(Sources(good=-9))  # type: ignore[arg-type]
    message = str(raised.value)
    assert "pip's package sources: there is no version of torch (try 1)" in message
    assert "http://127.0.0.1:9: " in message and "of the package index: there is no version" in message
    assert "PIP_EXTRA_INDEX_URL" in message and "\n" not in message


UV = """Resolved 3 packages in 9ms
Downloading torch (502.0MiB)
Downloading numpy (15.8MiB)
 Downloaded numpy
{end}"""


def test_progress_counts_what_is_downloaded() -> None:
    progress = install.Progress(543.0)
    with subprocess.Popen(["printf", UV.format(end="")], stdout=subprocess.PIPE, text=True) as process:
        output = progress.follow(process)
    assert progress.done == pytest.approx(15.8 * 1.048576, rel=1e-3) and list(progress.running) == ["torch"]
    assert output[0].startswith("Resolved")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            ["error: No solution found", "  cause: Because there is no version of a==1", "", "hint: more"],
            "no version of a",
        ),
        (
            ["ERROR: Could not find a version that satisfies a==1", "ERROR: No matching distribution"],
            "a==1: No matching",
        ),
        ([], "without a message"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(output: list[str], expected: str) -> None:
    reason = install.reason_of(output)
    assert expected in reason and "hint" not in reason and "\n" not in reason


def test_parts_have_the_size_asked_for_and_join_to_the_whole(tmp_path: Path) -> None:
    parts, data = Parts(tmp_path, 1000), os.urandom(2500)
    for start in range(0, len(data), 700):
        parts.write(data[start : start + 700])
    parts.close()
    files = sorted(tmp_path.iterdir())
    assert [file.stat().st_size for file in files] == [1000, 1000, 500]
    assert b"".join(file.read_bytes() for file in files) == data
